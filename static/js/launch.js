// The page of a launch at work: the search appears once it has begun, and is drawn by the module of the plan pages.
import "./plan-run.js";

function reveal(points) {
  if (!points?.length) return;
  for (const name of ["#search", "#best"]) document.querySelector(name).hidden = false;
}

document.addEventListener("e2llm:job-snapshot", ({ detail }) => reveal(detail.generations));
document.addEventListener("e2llm:job-generations", ({ detail }) => reveal(detail.points));
