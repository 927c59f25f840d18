"use strict";

const LARGEST = 20e6; // bytes of a photo, as the server has it
const LARGEST_REQUEST = 500e6;
const MOST_FILES = 5000;
const EVERY = 700; // milliseconds between two questions about a lesson

const $ = (id) => document.getElementById(id);
const state = { classes: new Set(), pile: [], watched: new Set(), sent: new Map(), last: null, examples: null };

/* ------------------------------------------------------------------------------- elements */

/** An element; text is never read as markup. */
function element(name, attributes = {}, ...content) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value != null) made.setAttribute(key, value);
  }
  made.append(...content.filter((part) => part != null));
  return made;
}

const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)}\u00a0%`; // a figure and its unit never part
const counted = (number, one, many = `${one}s`) => `${number.toLocaleString("en-GB")} ${number === 1 ? one : many}`;

function say(text) {
  if ($("said").textContent !== text) $("said").textContent = text;
}

function showError(error) {
  const close = element("button", { type: "button", "aria-label": "Close this message", onclick: hideError }, "×");
  const words = element("p", {}, element("strong", {}, sentence(error.message)), error.hint || "");
  $("alert").replaceChildren(words, close);
  $("alert").hidden = false;
  $("alert").scrollIntoView({ block: "nearest" });
}

function hideError() {
  $("alert").hidden = true;
}

const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?…]$/.test(text) ? "" : ".");

/** Run something; what goes wrong is shown. */
async function attempt(work) {
  hideError();
  try {
    return await work();
  } catch (error) {
    showError(error);
    return undefined;
  }
}

/* ------------------------------------------------------------------------------- the API */

async function api(method, path, body) {
  const token = sessionStorage.getItem("token");
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  let response;
  try {
    response = await fetch(`api/${path}`, { method, body, headers });
  } catch {
    throw Object.assign(new Error("the server does not answer"), { hint: "Is it still running? It may also have refused a request that is too large." });
  }
  if (response.status === 401) {
    await askToken(Boolean(token));
    return api(method, path, body);
  }
  const answer = await response.json().catch(() => ({ error: `the server answered with ${response.status}` }));
  if (!response.ok) throw Object.assign(new Error(answer.error), { hint: answer.hint, status: response.status });
  return answer;
}

let asking = null; // several requests may fail at once: one question is enough

function askToken(wrong) {
  asking ??= new Promise((resolve) => {
    $("token-why").textContent = wrong ? "That token is not the right one." : "This server asks for the token that it was started with.";
    $("token").value = "";
    $("ask-token").showModal();
    $("ask-token").oncancel = (event) => event.preventDefault();
    $("token-form").onsubmit = () => {
      sessionStorage.setItem("token", $("token").value);
      asking = null;
      resolve();
    };
  });
  return asking;
}

/* ------------------------------------------------------------------------------- tabs */

const tabs = [...document.querySelectorAll("[role=tab]")];

function select(tab, focus = false) {
  for (const other of tabs) {
    const chosen = other === tab;
    other.setAttribute("aria-selected", String(chosen));
    other.tabIndex = chosen ? 0 : -1;
    $(other.getAttribute("aria-controls")).hidden = !chosen;
  }
  if (focus) tab.focus();
  hideError();
  history.replaceState(null, "", `#${tab.getAttribute("aria-controls")}`);
  if (tab.id === "tab-versions") attempt(showVersions);
}

function moveBetweenTabs(event) {
  const steps = { ArrowRight: 1, ArrowLeft: -1 };
  const place = tabs.indexOf(event.target);
  let next = null;
  if (event.key in steps) next = tabs[(place + steps[event.key] + tabs.length) % tabs.length];
  if (event.key === "Home") next = tabs[0];
  if (event.key === "End") next = tabs.at(-1);
  if (next) {
    event.preventDefault();
    select(next, true);
  }
}

/* ------------------------------------------------------------------------------- files */

/** Let a box take files that are chosen in an input or dropped on it, folders too. */
function takeFiles(box, inputs, take) {
  for (const input of inputs) {
    input.addEventListener("change", () => {
      take([...input.files]);
      input.value = "";
    });
  }
  box.addEventListener("dragover", (event) => {
    event.preventDefault();
    box.classList.add("over");
  });
  box.addEventListener("dragleave", () => box.classList.remove("over"));
  box.addEventListener("drop", async (event) => {
    event.preventDefault();
    box.classList.remove("over");
    const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
    const found = entries.length ? (await Promise.all(entries.map(filesOf))).flat() : [...event.dataTransfer.files];
    take(found);
  });
}

async function filesOf(entry) {
  if (entry.isFile) return [await new Promise((resolve, reject) => entry.file(resolve, reject))];
  const reader = entry.createReader();
  const found = [];
  for (;;) {
    const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (!some.length) return found;
    found.push(...(await Promise.all(some.map(filesOf))).flat());
  }
}

const isZip = (file) => /\.zip$/i.test(file.name);
const isHidden = (file) => /^\.|^(thumbs\.db|desktop\.ini)$/i.test(file.name);

function refuseLarge(files) {
  const large = files.find((file) => file.size > LARGEST && !isZip(file));
  if (large) throw Object.assign(new Error(`'${large.name}' is larger than 20 MB`), { hint: "Take a smaller copy of this photo." });
  if (files.length > MOST_FILES) throw new Error(`more than ${MOST_FILES.toLocaleString("en-GB")} files at once`);
  if (files.reduce((sum, file) => sum + file.size, 0) > LARGEST_REQUEST) throw new Error("these are more than 500 MB together");
}

/** A photo to look at; most browsers do not show HEIC, and say its name instead. */
function picture(file) {
  const image = element("img", { alt: file.name, src: URL.createObjectURL(file) });
  image.addEventListener("load", () => URL.revokeObjectURL(image.src));
  image.addEventListener("error", () => image.replaceWith(element("span", { class: "noimage" }, file.name)));
  return image;
}

/** Photos that are pasted go where the eye is: to be recognised, or to a class. */
function paste(event) {
  const files = [...(event.clipboardData?.files || [])].filter((file) => file.type.startsWith("image/"));
  if (!files.length || document.querySelector("dialog[open]")) return;
  event.preventDefault();
  if (!$("recognise").hidden) recognise(files);
  if (!$("teach").hidden) addPhotos(document.activeElement.closest?.(".class") || $("classes").lastElementChild, files);
}

/* ------------------------------------------------------------------------------- camera */

const byTouch = matchMedia("(pointer: coarse)").matches;
const hasCamera = byTouch || Boolean(navigator.mediaDevices?.getUserMedia);

/** A photo of the camera: a telephone has an application for that, other machines get a viewfinder. */
function offerCamera(button, take) {
  button.hidden = !hasCamera;
  button.addEventListener("click", () => (byTouch ? shoot(take) : attempt(() => lookThrough(take))));
}

function shoot(take) {
  $("shutter").onchange = () => {
    take([...$("shutter").files]);
    $("shutter").value = "";
  };
  $("shutter").click();
}

async function lookThrough(take) {
  const stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } }).catch(() => {
    throw Object.assign(new Error("the camera cannot be used"), { hint: "Is there one, and does the browser allow it?" });
  });
  const [video, dialog] = [$("video"), $("viewfinder")];
  video.srcObject = stream;
  dialog.returnValue = "";
  dialog.showModal();
  await new Promise((resolve) => dialog.addEventListener("close", resolve, { once: true }));
  const canvas = element("canvas", { width: video.videoWidth, height: video.videoHeight });
  canvas.getContext("2d").drawImage(video, 0, 0);
  for (const track of stream.getTracks()) track.stop();
  video.srcObject = null;
  if (dialog.returnValue !== "take" || !canvas.width) return;
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.92));
  take([new File([blob], "camera.jpg", { type: "image/jpeg" })]);
}

/* ------------------------------------------------------------------------------- examples */

const fileOf = ({ name, picture: address }) =>
  new File([Uint8Array.from(atob(address.split(",")[1]), (byte) => byte.charCodeAt(0))], name, { type: "image/png" });

async function showExamples() {
  state.examples = await api("GET", "examples");
  const buttons = state.examples.photos.map((one) =>
    element("li", {}, element("button", { type: "button", "aria-label": `Recognise ${one.name}`, onclick: () => recognise([fileOf(one)]) }, element("img", { src: one.picture, alt: "" }))),
  );
  $("examples").querySelector("ul").replaceChildren(...buttons);
  $("examples").hidden = !buttons.length;
  $("example-lesson").hidden = !state.examples.classes.length;
}

function fillExample() {
  const { classes, pile } = state.examples;
  fillLesson({ classes: classes.map(({ name, photos }) => ({ name, photos: photos.map(fileOf) })), pile: pile.map(fileOf) });
  $("start").focus({ preventScroll: true });
}

/* ------------------------------------------------------------------------------- recognise */

async function recognise(files) {
  if (!files.length) return;
  await attempt(async () => {
    refuseLarge(files);
    const form = new FormData();
    for (const file of files) form.append("photo", file, file.name);
    $("drop-photo").classList.add("busy");
    try {
      const answer = await api("POST", "predict", form);
      state.last = files.findLast((_, place) => !answer.photos[place].problem) || state.last;
      $("answers").replaceChildren(...answer.photos.map((one, place) => answerCard(one, files[place])));
    } finally {
      $("drop-photo").classList.remove("busy");
    }
  });
}

function answerCard(answer, file) {
  const heading = element("div", { class: "heading" });
  const words = element("div", { class: "words" }, heading);
  if (answer.problem) {
    heading.append(element("p", { class: "label problem" }, "Cannot be read"), element("p", { class: "file" }, `${answer.photo}: ${answer.problem}`));
    return element("article", { class: "card answer" }, element("span"), words);
  }
  const unknown = answer.label === "unknown";
  heading.append(
    element("p", { class: unknown ? "label unknown" : "label" }, unknown ? "Unknown" : answer.label),
    element("p", { class: "file" }, unknown ? `${answer.photo}: nothing it knows fits well enough. The nearest classes:` : answer.photo),
  );
  words.append(bars(answer.classes, unknown));
  return element("article", { class: "card answer" }, picture(file), words);
}

function bars(classes, unsure) {
  const lines = classes.map(({ name, score }) => {
    const fill = element("span", { class: "fill" });
    fill.style.width = `${100 * score}%`;
    return element(
      "li",
      {},
      element("span", { class: "name", title: name }, name),
      element("span", { class: "bar", "aria-hidden": "true" }, fill),
      element("span", { class: "value" }, percent(score)),
    );
  });
  return element("ul", { class: unsure ? "bars unsure" : "bars" }, ...lines);
}

async function showServing() {
  const { version, classes, unknown } = await api("GET", "classes");
  state.classes = new Set(classes.map((one) => one.name));
  $("serving").textContent = `${version} · ${counted(classes.length, "class", "classes")}${unknown ? "" : " · never answers “unknown”"}`;
  $("known-count").textContent = classes.length;
  const names = [...state.classes].sort((a, b) => a.localeCompare(b));
  $("known").replaceChildren(...names.map((name) => element("li", {}, name)));
  $("names").replaceChildren(...names.map((name) => element("option", { value: name })));
}

/* ------------------------------------------------------------------------------- teach */

function addClass(focus = false) {
  const row = $("class-row").content.cloneNode(true).firstElementChild;
  const name = row.querySelector(".name");
  row.photos = [];
  name.addEventListener("input", () => {
    row.querySelector(".known-already").hidden = !state.classes.has(name.value.trim());
  });
  row.querySelector(".remove").addEventListener("click", () => {
    row.remove();
    countClasses();
    $("add-class").focus();
  });
  takeFiles(row.querySelector(".drop"), [row.querySelector(".photos")], (files) => addPhotos(row, files));
  offerCamera(row.querySelector(".camera"), (files) => addPhotos(row, files));
  $("classes").append(row);
  countClasses();
  if (focus) name.focus();
}

function addPhotos(row, files) {
  row.photos.push(...files.filter((file) => !isHidden(file)));
  showPhotos(row);
}

function countClasses() {
  const rows = [...$("classes").children];
  for (const row of rows) row.querySelector(".remove").hidden = rows.length === 1;
}

function showPhotos(row) {
  const items = row.photos.map((file, place) =>
    element(
      "li",
      {},
      picture(file),
      element("button", { type: "button", "aria-label": `Remove ${file.name}`, onclick: () => {
        row.photos.splice(place, 1);
        showPhotos(row);
      } }, "×"),
    ),
  );
  row.querySelector(".thumbs").replaceChildren(...items);
}

function fillPile(files) {
  state.pile.push(...files.filter((file) => !isHidden(file)));
  showPile();
}

function showPile() {
  const zips = state.pile.filter(isZip).length;
  const photos = state.pile.length - zips;
  const parts = [photos && counted(photos, "photo"), zips && counted(zips, "zip")].filter(Boolean);
  $("pile-count").textContent = parts.length ? `In the pile: ${parts.join(" and ")}.` : "No pile: it learns from the photos above alone.";
  $("clear-pile").hidden = !parts.length;
}

function lessonForm() {
  const form = new FormData();
  const files = [...state.pile, ...$("check").files];
  const rows = [...$("classes").children];
  const filled = rows.filter((row) => row.photos.length || row.querySelector(".name").value.trim());
  (filled.length ? filled : rows).forEach((row, place) => {
    const input = row.querySelector(".name");
    const name = input.value.trim();
    if (!name) {
      input.focus();
      throw Object.assign(new Error("a class has no name"), { hint: "Give every class a name and a photo." });
    }
    if (!row.photos.length) throw Object.assign(new Error(`'${name}' has no photo`), { hint: "One to five photos of each class are enough." });
    form.append(`class${place + 1}`, name);
    for (const file of row.photos) form.append(`photos${place + 1}`, file, file.name);
    files.push(...row.photos);
  });
  for (const file of state.pile) form.append("pile", file, file.name);
  for (const file of $("check").files) form.append("check", file, file.name);
  refuseLarge(files);
  return form;
}

async function teach(event) {
  event.preventDefault();
  await attempt(async () => {
    const form = lessonForm();
    $("start").disabled = true;
    $("start").textContent = "Sending the photos …";
    try {
      const job = await api("POST", "learn", form);
      state.sent.set(job.id, lessonFiles());
      clearLesson();
      watch(job);
    } finally {
      $("start").disabled = false;
      $("start").textContent = "Teach";
    }
  });
}

/** What is in the form, so that the same lesson can be given again. */
function lessonFiles() {
  const classes = [...$("classes").children].map((row) => ({ name: row.querySelector(".name").value, photos: row.photos }));
  return { classes: classes.filter(({ name }) => name.trim()), pile: state.pile };
}

function fillLesson({ classes, pile }) {
  $("classes").replaceChildren();
  for (const { name, photos } of classes) {
    addClass();
    const row = $("classes").lastElementChild;
    row.querySelector(".name").value = name;
    row.querySelector(".name").dispatchEvent(new Event("input"));
    row.photos = [...photos];
    showPhotos(row);
  }
  state.pile = [...pile];
  showPile();
}

/** Lead to the field for check photos, with the lesson in the form again where it is empty. */
function offerCheck(job) {
  const empty = [...$("classes").children].every((row) => !row.photos.length && !row.querySelector(".name").value.trim());
  if (empty && state.sent.has(job.id)) fillLesson(state.sent.get(job.id));
  $("measure").open = true;
  $("measure").scrollIntoView({ block: "center" });
  $("check").focus({ preventScroll: true });
}

function unmeasured(job) {
  return element(
    "div",
    { class: "warning" },
    element("p", {}, element("strong", {}, "What the old classes lost was not measured on photos of theirs. "), "A zip of them tells, with one folder per class. New classes are then held back where the old ones would lose too much."),
    element("button", { type: "button", class: "quiet", onclick: () => offerCheck(job) }, "Measure it"),
  );
}

function clearLesson() {
  $("classes").replaceChildren();
  addClass();
  state.pile = [];
  showPile();
  $("check").value = "";
}

/** Ask for a lesson until it ends. */
async function watch(job) {
  if (state.watched.has(job.id)) return;
  state.watched.add(job.id);
  const card = element("article", { class: "card job", id: `job-${job.id}`, tabindex: "-1" });
  $("jobs").prepend(card);
  showJob(card, job);
  card.scrollIntoView({ block: "nearest" });
  let told = job;
  try {
    for (;;) {
      showJob(card, told);
      if (told.state !== "queued" && told.state !== "running") break;
      await new Promise((resolve) => setTimeout(resolve, EVERY));
      told = await api("GET", `jobs/${job.id}`);
    }
  } catch (error) {
    card.replaceChildren(element("h2", {}, "Lost sight of this lesson"), element("p", { class: "soft" }, sentence(error.message), " ", error.hint || ""));
    return;
  }
  if (told.state === "done") card.scrollIntoView({ block: "start" });
}

function showJob(card, job) {
  const names = Object.keys(job.taught).join(", ");
  const shown = { queued: showRunning, running: showRunning, done: showDone, failed: showFailed, kept: showKept, discarded: showDiscarded };
  shown[job.state](card, job, names);
}

function showRunning(card, job, names) {
  say(`Learning ${names}: ${job.message}`);
  if (card.dataset.state !== "running") {
    card.dataset.state = "running";
    card.replaceChildren(
      element("h2", {}, `Learning ${names}`),
      element("progress", { max: "1", "aria-label": `Learning ${names}` }),
      element("p", { class: "soft message" }),
      element("div", { class: "row" }, element("button", { type: "button", class: "quiet", onclick: () => decide(card, job, "discard") }, "Stop and discard")),
    );
  }
  card.querySelector("progress").value = job.progress;
  card.querySelector(".message").textContent = sentence(job.message);
}

function showDone(card, job, names) {
  card.dataset.state = "done";
  say(`Done: ${names}. Keep or discard it.`);
  const summary = job.summary;
  const skipped = Object.entries(summary.could_not_be_used);
  card.replaceChildren(
    element("h2", {}, `Learnt ${names}`),
    ...(summary.old_classes ? [] : [unmeasured(job)]),
    element("p", { class: "soft" }, `Not in use yet: ${job.learnt_from} goes on serving until you decide.`),
    element("ul", { class: "facts" }, ...facts(summary)),
    ...summary.notes.map((note) => element("p", { class: "note" }, sentence(note))),
    ...(skipped.length ? [element("p", { class: "note" }, `${counted(skipped.length, "photo")} could not be used, such as ${skipped[0].join(": ")}.`)] : []),
    comparison(job),
    helperPictures(job),
    element(
      "div",
      { class: "row" },
      element("button", { type: "button", class: "primary", onclick: () => decide(card, job, "keep") }, "Keep"),
      element("button", { type: "button", onclick: () => decide(card, job, "discard") }, "Discard"),
    ),
  );
}

/** The last photo that was asked for, answered before and after the lesson. */
function comparison(job) {
  const box = element("div", { class: "compare" });
  const choose = element("input", { type: "file", accept: "image/*,.heic,.heif" });
  choose.addEventListener("change", () => choose.files.length && attempt(() => compare(box, job, choose.files[0])));
  const offer = element("label", { class: "button quiet" }, "Try it on a photo", choose);
  box.append(element("div", { class: "sides", hidden: true }), element("div", { class: "row" }, offer));
  if (state.last) compare(box, job, state.last).catch(() => {}); // which only leaves it out
  return box;
}

async function compare(box, job, file) {
  const form = () => {
    const made = new FormData();
    made.append("photo", file, file.name);
    return made;
  };
  const asked = [api("POST", "predict", form()), api("POST", `jobs/${job.id}/predict`, form())];
  const [before, after] = await Promise.all(asked);
  state.last = file;
  const side = (title, { photos: [answer] }) => {
    const unknown = answer.label === "unknown";
    const label = element("p", { class: unknown ? "label unknown" : "label" }, unknown ? "Unknown" : answer.label);
    return element("div", {}, element("h4", {}, title), label, bars(answer.classes.slice(0, 3), unknown));
  };
  const sides = box.querySelector(".sides");
  sides.replaceChildren(picture(file), side(`Before (${before.version})`, before), side("After", after));
  sides.hidden = false;
}

function facts(summary) {
  const { old_classes: old, new_photos_left_out: fresh, pile } = summary;
  const fact = (name, value, meaning) => {
    const figures = value.split(" → ").flatMap((one, place) => [place ? " → " : "", element("span", {}, one)]);
    return element("li", {}, element("span", { class: "name" }, name), element("span", { class: "value" }, ...figures), element("span", { class: "meaning" }, meaning));
  };
  return [
    old
      ? fact("Old classes", `${percent(old.before)} → ${percent(old.after)}`, `right before and after, on ${counted(old.photos, "check photo")}`)
      : fact("Old classes", "not measured", "add check photos to know what they lose"),
    fresh
      ? fact("New photos", percent(fresh.after), `of ${fresh.photos} recognised by what the others taught${pile.used ? `; ${percent(fresh.after_without_pile)} without the pile` : ""}`)
      : fact("New photos", "not measured", "a second photo of a class would change that"),
    pile.photos
      ? fact("Pile", pile.used ? `${pile.helped} of ${pile.photos}` : "not used", pile.used ? "photos helped a class" : pile.why_not)
      : fact("Pile", "none", "it learnt from the labelled photos alone"),
  ];
}

function helperPictures(job) {
  if (!job.helpers.length) return null;
  const groups = new Map();
  for (const one of job.helpers) groups.set(one.helped, [...(groups.get(one.helped) || []), one]);
  const box = element("details", { class: "helpers", open: true }, element("summary", {}, "Pictures of the pile that it took for the new classes"));
  for (const [name, own] of groups) {
    const images = own.map((one) => element("li", {}, element("img", { src: one.picture, alt: `${one.photo}, weight ${one.weight.toFixed(2)}`, title: `${one.photo}, counts ${percent(one.weight, 0)} of an example` })));
    box.append(element("h4", {}, name), element("ul", { class: "thumbs" }, ...images));
  }
  return box;
}

function showFailed(card, job, names) {
  card.dataset.state = "failed";
  say(`Learning ${names} failed: ${job.error}`);
  card.replaceChildren(
    element("h2", {}, `${names} could not be learnt`),
    element("p", {}, sentence(job.error)),
    element("p", { class: "soft" }, job.hint ? sentence(job.hint) : "", " The version in use is as it was."),
    element("div", { class: "row" }, element("button", { type: "button", class: "quiet", onclick: () => decide(card, job, "discard") }, "Dismiss")),
  );
}

function showKept(card, job, names) {
  card.dataset.state = "kept";
  const sides = card.querySelector(".sides:not([hidden])");
  card.replaceChildren(element("h2", {}, `${job.version} knows ${names}`), element("p", { class: "soft" }, "It serves now. The list of versions leads back."), sides || "");
}

function showDiscarded(card) {
  card.remove();
}

async function decide(card, job, decision) {
  await attempt(async () => {
    for (const button of card.querySelectorAll("button")) button.disabled = true;
    try {
      const told = await api("POST", `jobs/${job.id}/${decision}`);
      say(decision === "keep" ? `Kept as ${told.version}` : "Discarded");
      showJob(card, told);
      if (decision === "keep") card.focus();
      await showServing();
    } finally {
      for (const button of card.querySelectorAll("button")) button.disabled = false;
    }
  });
}

/* ------------------------------------------------------------------------------- versions */

async function showVersions() {
  const { versions } = await api("GET", "versions");
  $("version-list").replaceChildren(...versions.map(versionCard));
}

function versionCard(version) {
  const facts = version.problem || counted(version.classes, "class", "classes");
  const origin = version.name === "original" ? "as the server was given it" : version.learnt_from && `on top of ${version.learnt_from}`;
  const when = version.kept && new Date(version.kept).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
  const about = element(
    "div",
    { class: "about" },
    element("p", { class: "name" }, version.name),
    element("p", { class: "soft" }, [facts, origin, when && `kept ${when}`].filter(Boolean).join(" · ")),
    version.lesson ? element("p", {}, version.lesson.replace(/^\d{4}-\d\d-\d\d: /, "")) : null,
  );
  const action = version.current
    ? element("span", { class: "badge" }, "in use")
    : element("button", { type: "button", disabled: Boolean(version.problem), "aria-label": `Use ${version.name}`, onclick: () => useVersion(version.name) }, "Use this one");
  return element("li", { class: version.current ? "card current" : "card" }, about, action);
}

async function useVersion(name) {
  await attempt(async () => {
    const { versions } = await api("POST", `versions/${encodeURIComponent(name)}/use`);
    $("version-list").replaceChildren(...versions.map(versionCard));
    say(`${name} is in use`);
    await showServing();
  });
}

/* ------------------------------------------------------------------------------- start */

async function start() {
  for (const tab of tabs) {
    tab.addEventListener("click", () => select(tab));
    tab.addEventListener("keydown", moveBetweenTabs);
  }
  takeFiles($("drop-photo"), [$("photo")], recognise);
  takeFiles($("drop-pile"), [$("pile"), $("pile-folder")], fillPile);
  for (const kind of ["dragover", "drop"]) window.addEventListener(kind, (event) => event.preventDefault()); // a photo beside the box must not replace the page
  document.addEventListener("paste", paste);
  offerCamera($("camera-photo"), recognise);
  $("add-class").addEventListener("click", () => addClass(true));
  $("example-lesson").addEventListener("click", fillExample);
  $("clear-pile").addEventListener("click", () => {
    state.pile = [];
    showPile();
  });
  $("lesson").addEventListener("submit", teach);
  addClass();
  const wanted = tabs.find((tab) => `#${tab.getAttribute("aria-controls")}` === location.hash);
  if (wanted) select(wanted);
  await attempt(async () => {
    await showServing();
    await showExamples();
    const jobs = await api("GET", "jobs");
    for (const job of jobs.reverse()) {
      if (job.state === "queued" || job.state === "running") watch(job);
      if (job.state === "done") watch(await api("GET", `jobs/${job.id}`));
    }
  });
}

start();
