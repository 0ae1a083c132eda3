// Times in the viewer's zone, tables for narrow windows, forms that ask for what is needed, and what
// is live is fetched again: the server renders all of it.

const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
const style = new Intl.DateTimeFormat(undefined, {
  year: "numeric", month: "2-digit", day: "2-digit",
  hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3,
});

/** Writes the times below an element in the viewer's zone; UTC stays in the title. */
function localTimes(root) {
  for (const time of root.querySelectorAll("time[datetime]:not([title])")) {
    const at = new Date(time.dateTime);
    if (Number.isNaN(at.getTime())) continue;
    time.title = time.textContent;
    time.textContent = style.format(at);
  }
  for (const each of root.querySelectorAll("[data-zone]")) each.textContent = zone;
}

/** In a narrow window a row is a block, whose cells say what they are. */
function nameCells(root) {
  for (const table of root.querySelectorAll(".wide > table:not(#messages)")) {
    const titles = [...table.querySelectorAll("thead th")].map((each) => each.textContent.trim());
    for (const row of table.querySelectorAll("tbody > tr")) {
      if (row.children.length !== titles.length) continue;
      for (const [place, cell] of [...row.children].entries()) cell.dataset.title = titles[place];
    }
  }
}

/** A form asks only for what the chosen way needs; its times are the viewer's, and sent as UTC. */
function asksByWay(ways) {
  const fields = ways.form.querySelectorAll("[data-for]");
  const times = ways.form.querySelectorAll("input[type=datetime-local]");
  const choose = () => {
    for (const each of fields) {
      each.hidden = each.dataset.for !== ways.value;
      each.querySelector("input").disabled = each.hidden; // and so is not sent
    }
  };
  for (const each of times) {
    if (!each.value) continue;
    const at = new Date(`${each.value}Z`);
    each.value = new Date(at - at.getTimezoneOffset() * 60000).toISOString().slice(0, -1);
  }
  ways.form.addEventListener("formdata", (event) => {
    for (const { name, value } of times) {
      if (event.formData.get(name)) event.formData.set(name, new Date(value).toISOString());
    }
  });
  ways.addEventListener("change", choose);
  choose();
}

/** A live part is left alone while someone writes or chooses in it. */
function isBusy(part) {
  return part.contains(document.activeElement)
    && document.activeElement.matches("input, select, textarea");
}

function take(fresh) {
  for (const part of document.querySelectorAll("[data-live][id]")) {
    const next = fresh.getElementById(part.id);
    if (!next || isBusy(part)) continue;
    localTimes(next);
    nameCells(next);
    if (next.innerHTML === part.innerHTML) continue;
    const focused = part.contains(document.activeElement) ? document.activeElement : null;
    const href = focused?.getAttribute("href");
    part.innerHTML = next.innerHTML;
    if (href) part.querySelector(`[href="${CSS.escape(href)}"]`)?.focus();
  }
}

function isAway(since, reason) {
  const away = document.getElementById("away");
  away.hidden = !since;
  if (since && !away.textContent) {
    away.textContent = `This broker does not answer since ${style.format(since)} (${reason}). `
      + "What you see is from before; the page tries again.";
  }
  if (!since) away.textContent = "";
}

async function refresh(everyMs) {
  let awaySince = null;
  for (;;) {
    await new Promise((done) => setTimeout(done, everyMs));
    if (document.hidden) continue;
    try {
      const response = await fetch(location.href, { signal: AbortSignal.timeout(10000) });
      if (!response.ok) throw new Error(`status ${response.status}`);
      take(new DOMParser().parseFromString(await response.text(), "text/html"));
      awaySince = null;
    } catch (error) {
      awaySince ??= new Date();
      isAway(awaySince, error.message);
      continue;
    }
    isAway(null);
  }
}

localTimes(document);
nameCells(document);
for (const ways of document.querySelectorAll("select[data-ways]")) asksByWay(ways);
document.addEventListener("fresh", (event) => localTimes(event.detail)); // other scripts' rows
const address = new URL(location.href);
if (address.searchParams.has("said")) { // told once, not again with each reload
  address.searchParams.delete("said");
  history.replaceState(null, "", address);
}
const everyS = Number(document.body.dataset.refreshS);
if (everyS) refresh(everyS * 1000);
