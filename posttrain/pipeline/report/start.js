startTheme();
startResults();
if (DATA.lm_eval.rows.length) startBenchmarks();
else {
  byId("benchmarks").hidden = true;
  document.querySelector('nav a[href="#benchmarks"]').remove();
}
if (DATA.curves.length) startCurves();
else byId("curves").hidden = true;
if (DATA.evaluations.length) startWatched();
else {
  byId("watched").hidden = true;
  document.querySelector('nav a[href="#watched"]').remove();
}
if (DATA.policies.length) {
  startFrontier();
  startLength();
  if (DATA.prompts.length) startSamples();
  else hideSamples();
} else {
  for (const id of ["frontier", "length", "completions"]) byId(id).hidden = true;
}
document.documentElement.dataset.ready = "yes";
