// What takes longer than a page waits, and what is live, comes as a stream of rows; copying.

const MOST_LIVE = 300;
const going = document.getElementById("going");
const said = document.getElementById("words");
const stop = document.getElementById("stop");
const body = document.querySelector("#messages tbody");

// --- copying ---

export function offerCopies(root) {
  if (!navigator.clipboard) return; // only there on a safe connection
  for (const button of root.querySelectorAll("[data-copy]")) button.hidden = false;
}

async function copied(button) {
  const what = button.dataset.copy;
  const text = what === "address"
    ? location.href
    : fetch(what).then((response) => response.text()).then((line) => line.trim());
  try {
    await navigator.clipboard.writeText(await text);
    button.textContent = "Copied";
  } catch (error) {
    button.textContent = "Not copied";
    button.title = error.message;
  }
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy]");
  if (button) copied(button);
});
offerCopies(document);

// --- the form: what is empty is not asked ---

document.getElementById("search")?.addEventListener("formdata", (event) => {
  for (const [name, value] of [...event.formData]) {
    if (!value && name !== "name") event.formData.delete(name); // a short address
  }
});

// --- rows as they come ---

/** Whether row a comes before row b: of one partition by their offsets, else by their times. */
function isBefore(a, b, isBackward) {
  const left = a.dataset.place.split(",").map(Number);
  const right = b.dataset.place.split(",").map(Number);
  const isOfOne = left[1] === right[1];
  for (let i = isOfOne ? 2 : 0; i < left.length; i += 1) {
    if (left[i] !== right[i]) return (left[i] < right[i]) !== isBackward;
  }
  return false;
}

function add(html, isBackward, most) {
  const made = document.createElement("template");
  made.innerHTML = html;
  document.dispatchEvent(new CustomEvent("fresh", { detail: made.content }));
  offerCopies(made.content);
  for (const row of [...made.content.querySelectorAll("tr")]) {
    row.classList.add("changed");
    let next = null; // as a rule it comes last, so look from there
    for (let at = body.lastElementChild; at && isBefore(row, at, isBackward); at = at.previousElementSibling) {
      next = at;
    }
    body.insertBefore(row, next);
    if (body.children.length > most) body.lastElementChild.remove();
  }
}

async function* linesOf(response) {
  const decoder = new TextDecoderStream();
  const reader = response.body.pipeThrough(decoder).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) yield JSON.parse(line);
  }
}

function run(address, way, limit) {
  const isLive = way === "live";
  const isBackward = isLive || way === "end";
  const most = isLive ? MOST_LIVE : limit;
  let place = {};
  let aborting = null;

  const show = (line) => {
    if (line.rows) add(line.rows, isBackward, most);
    if (line.words) said.textContent = line.words;
    if (line.at !== undefined) place = { at: line.at, looked: line.looked, found: line.found };
    for (const name of ["older", "newer"]) {
      if (!line[name]) continue;
      const link = document.getElementById(name);
      link.href = line[name];
      link.hidden = false;
    }
    return Boolean(line.is_done);
  };

  const begin = async () => {
    aborting = new AbortController();
    if (!place.at && !isLive) body.replaceChildren(); // from the beginning
    stop.hidden = false;
    stop.textContent = isLive ? "Pause" : "Stop";
    const url = new URL(address, location.href);
    for (const [name, value] of Object.entries(place)) {
      if (value) url.searchParams.set(name, value);
    }
    let isDone = false;
    let wrong = "";
    try {
      const response = await fetch(url, { signal: aborting.signal });
      if (!response.ok) {
        const page = new DOMParser().parseFromString(await response.text(), "text/html");
        wrong = page.querySelector("[role=alert]")?.textContent ?? `Status ${response.status}`;
      } else {
        for await (const line of linesOf(response)) isDone = show(line) || isDone;
      }
    } catch (error) {
      wrong = aborting.signal.aborted ? "" : `The broker does not answer any more (${error.message}).`;
    }
    if (wrong) said.textContent = wrong;
    aborting = null;
    stop.hidden = isDone;
    stop.textContent = "Go on";
  };

  stop.addEventListener("click", () => (aborting ? aborting.abort() : begin()));
  begin();
}

if (going?.dataset.stream) {
  body.replaceChildren();
  said.textContent = "";
  run(going.dataset.stream, going.dataset.way, Number(going.dataset.limit));
}
