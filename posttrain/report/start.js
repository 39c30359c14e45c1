startTheme();
startResults();
if (DATA.curves.length) startCurves();
else byId("curves").hidden = true;
if (DATA.policies.length) {
  startFrontier();
  startLength();
  startSamples();
} else {
  for (const id of ["frontier", "length", "completions"]) byId(id).hidden = true;
}
startSettings();
startLineage();
document.documentElement.dataset.ready = "yes";
