startTheme();
startResults();
startCurves();
startFrontier();
startLength();
startSamples();
startSettings();
startLineage();
document.documentElement.dataset.ready = "yes";
