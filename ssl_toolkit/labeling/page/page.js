"use strict";

const KEYS = "123456789abcdefghijklmnopqrstuvwxyz";
const MOST_SHOWN = 60; // class buttons without a search
const MANY = 20; // classes from which on there is a search
const element = (id) => document.getElementById(id);

let state = null; // of the server, for the image that is shown
let busy = true; // a request is in progress
let loaded = false; // the image can be seen, so that it may be labeled
let finished = false;
let preloaded = null;
let chosen = new Set(); // with several classes per image: those of the image, not saved yet

async function request(address, content) {
  const options = content === undefined ? {} : {
    method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(content),
  };
  let response;
  try {
    response = await fetch(address, options);
  } catch {
    throw new Error("the program has ended; start `ssl-toolkit label serve` again. Saved answers are in the labels file");
  }
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

async function change(address, content, done) { // returns true if it succeeded
  if (busy || finished) return false;
  busy = true;
  enable();
  let message = "", succeeded = false;
  try {
    state = await request(address, content);
    if (done) message = done(state);
    problem("");
    show();
    succeeded = true;
  } catch (error) {
    problem((content === undefined ? "" : "Not saved: ") + error.message);
  }
  busy = false;
  enable();
  element("status").textContent = message;
  return succeeded;
}

function problem(text) {
  element("problem").textContent = text;
  element("problem").hidden = !text;
}

function answer(label, add = false) {
  if (!state || state.index >= state.total || (!loaded && label)) return false;
  const path = state.path;
  return change("answer", {index: state.index, label, add}, () =>
    label ? `${path}: ${written(label)}. Saved.` : `${path}: skipped. Saved.`);
}

function written(label) { // as people read it
  return state.several ? names(label).join(", ") || "none of the classes" : label;
}

function names(label) {
  return (label || "").split("|").filter((name) => name);
}

function choose(name) {
  if (!state.several) answer(name);
  else if (loaded) {
    if (!chosen.delete(name)) chosen.add(name);
    classes();
  }
}

function save() {
  const label = state.classes.filter((name) => chosen.has(name)).join("|");
  return answer(label || "|", true);
}

function unsaved() { // a choice of several classes
  if (!state || !state.several || state.index >= state.total) return false;
  const before = names(state.answer);
  return chosen.size !== before.length || before.some((name) => !chosen.has(name));
}

async function move(step) {
  if (!state) return;
  const index = Math.min(state.total, Math.max(0, state.index + step));
  if (index === state.index) return;
  let message = "";
  if (unsaved()) {
    if (!(await save()) || step > 0) return; // saving shows the next image
    message = element("status").textContent;
  }
  change(`state/${index}`, undefined, () => message);
}

function undo() {
  if (unsaved()) {
    chosen = new Set(names(state.answer));
    classes();
  } else if (state && state.can_undo) {
    change("undo", {}, (now) => now.kept
      ? `${now.path}: another program changed this answer, which is kept.`
      : `${now.path}: answer taken back.`);
  }
}

async function finish() {
  if (unsaved() && !(await save())) return;
  await change("finish", {}, () => { finished = true; return ""; });
  if (finished) ended(`Saved in ${state.file}: ${progress()}. You can close this page.`);
}

function ended(text) {
  finished = true;
  for (const id of ["view", "classes", "add", "find-row", "controls"]) element(id).hidden = true;
  element("done").textContent = text;
  element("done").hidden = false;
}

function progress() {
  const skipped = state.skipped ? `, ${state.skipped} skipped` : "";
  return `${state.labeled} of ${state.total} labeled${skipped}`;
}

function show() {
  element("progress").textContent = progress();
  element("bar").max = state.total;
  element("bar").value = state.labeled + state.skipped;
  const over = state.index >= state.total;
  element("view").hidden = element("add").hidden = element("classes").hidden = over;
  element("done").hidden = !over;
  element("find-row").hidden = over || state.classes.length <= MANY;
  element("done").textContent =
    `No image is left: ${progress()}. The labels are in ${state.file}. Finish ends the program; Previous and Undo go back.`;
  element("find").value = element("name").value = "";
  element("save").hidden = !state.several;
  chosen = new Set(state.several ? names(state.answer) : []);
  if (over) return;
  const image = element("image");
  const address = `image/${state.index}`;
  if (!loaded || image.getAttribute("src") !== address) { // reports again what can't be read
    loaded = false;
    image.src = address;
  }
  image.alt = `Image ${state.path}`;
  element("path").textContent = `${state.index + 1}. ${state.path}`;
  element("note").textContent =
    state.answer === null ? "" : state.answer ? `Labeled: ${written(state.answer)}` : "Skipped";
  classes();
  if (state.next < state.total && state.next !== state.index) {
    preloaded = new Image();
    preloaded.src = `image/${state.next}`;
  }
}

function classes() {
  const wanted = element("find").value.trim().toLowerCase();
  const group = element("classes");
  group.replaceChildren();
  let shown = 0;
  state.classes.forEach((name, place) => {
    const pressed = state.several ? chosen.has(name) : name === state.answer;
    const known = name === state.guess || pressed;
    if (wanted ? !name.toLowerCase().includes(wanted) : shown >= MOST_SHOWN && !known) return;
    shown += 1;
    const button = document.createElement("button");
    button.type = "button";
    button.dataset.name = name;
    if (place < KEYS.length) {
      const key = document.createElement("kbd");
      key.textContent = KEYS[place];
      button.append(key, " ");
    }
    button.append(name);
    if (pressed) button.classList.add("chosen");
    button.setAttribute("aria-pressed", String(pressed));
    if (name === state.guess) {
      button.classList.add("guess");
      const share = state.confidence === null ? "" : ` ${Math.round(100 * state.confidence)}%`;
      const guess = document.createElement("small");
      const key = document.createElement("kbd");
      key.textContent = "↵";
      guess.append(" guess", share, " ", key);
      button.append(guess);
    }
    button.addEventListener("click", () => choose(name));
    group.append(button);
  });
  enable();
}

function enable() {
  const over = !state || state.index >= state.total;
  for (const button of element("classes").children) button.disabled = !loaded;
  element("previous").disabled = !state || state.index === 0;
  element("next").disabled = over;
  element("skip").disabled = over;
  element("save").disabled = over || !loaded;
  element("undo").disabled = !state || !(state.can_undo || unsaved());
}

element("image").addEventListener("load", () => {
  const image = element("image");
  image.classList.toggle("tiny", Math.max(image.naturalWidth, image.naturalHeight) < 100);
  loaded = true;
  enable();
});
element("image").addEventListener("error", async () => {
  const address = element("image").getAttribute("src");
  try {
    await request(address);
  } catch (error) {
    if (element("image").getAttribute("src") !== address) return; // another image is shown by now
    problem(`${state.path} can't be shown: ${error.message}. Skip it.`);
  }
});
element("previous").addEventListener("click", () => move(-1));
element("next").addEventListener("click", () => move(1));
element("save").addEventListener("click", save);
element("skip").addEventListener("click", () => answer(""));
element("undo").addEventListener("click", undo);
element("finish").addEventListener("click", finish);
element("find").addEventListener("input", classes);
element("add").addEventListener("submit", (event) => {
  event.preventDefault();
  const name = element("name").value.trim();
  element("name").blur();
  if (!name) return;
  if (!state.several) return answer(name, true);
  if (name.includes("|")) return problem(`${name}: a class can't have |, which separates classes.`);
  problem("");
  element("name").value = "";
  if (!state.classes.includes(name)) state.classes.push(name);
  chosen.add(name);
  classes();
});

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || !state) return;
  if (event.target instanceof HTMLInputElement) {
    if (event.key === "Escape") {
      event.target.value = "";
      event.target.blur();
      classes();
    } else if (event.key === "Enter" && event.target.id === "find") {
      const first = element("classes").firstElementChild;
      event.preventDefault();
      event.target.blur();
      if (first && !event.repeat) choose(first.dataset.name);
    }
    return;
  }
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  const onButton = event.target instanceof HTMLButtonElement;
  const place = key.length === 1 ? KEYS.indexOf(key) : -1;
  if (key === "ArrowLeft") move(-1);
  else if (key === "ArrowRight") move(1);
  else if (event.repeat) return; // a key that stays down labels one image
  else if (key === "Backspace") undo();
  else if (key === "0") answer("");
  else if (key === "+") element("name").focus();
  else if (key === "/" && !element("find-row").hidden) element("find").focus();
  else if (key === "Enter" && !onButton && state.several) save();
  else if (key === "Enter" && !onButton && state.guess) answer(state.guess);
  else if (place >= 0 && place < state.classes.length) choose(state.classes[place]);
  else return;
  event.preventDefault();
});

(async () => {
  try {
    state = await request("state");
    show();
  } catch (error) {
    problem(error.message);
  }
  busy = false;
  enable();
})();
