"use strict";
// Text from elsewhere is only ever set as textContent.
const at = id => document.getElementById(id);
function make(tag, words, ...inner) {
  const element = document.createElement(tag);
  if (words) element.className = words;
  for (const one of inner) element.append(one instanceof Node ? one : document.createTextNode(String(one)));
  return element;
}
const show = (id, ...inner) => at(id).replaceChildren(...inner);
function age(seconds) {
  if (seconds == null) return "";
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]])
    if (seconds >= size) return Math.floor(seconds / size) + " " + unit;
  return Math.max(0, Math.floor(seconds)) + " s";
}
const gib = mib => mib < 10240 ? (mib / 1024).toFixed(1) : Math.round(mib / 1024);
const count = (n, what) => n + " " + what + (n === 1 ? "" : "s");

function meter(label, part, words, text) {
  const fill = make("i");
  fill.style.width = Math.max(0, Math.min(100, 100 * part)) + "%";
  return make("div", "meter", make("span", "soft", label), make("div", "trough", fill), make("span", words, text));
}
const percent = use => use.percent == null ? "" : use.percent + " %";
function who(jobs) {
  const used = job => last.job_uses.filter(use => use.job === job.job && use.end == null && use.percent != null);
  return jobs.map(job => "job " + job.job + " of " + job.user + used(job).map(use => ", mean use " + percent(use)).join("")).join(", ");
}
function ended(uses) {
  const all = uses.filter(use => use.end != null);
  at("ended-part").hidden = !all.length;
  show("ended", table([head("job"), head("user"), head("state"), head("GPUs", "n"), head("time", "n"), head("mean use", "n"), head("ended", "n")],
    all.map(use => [use.job, use.user, use.state.toLowerCase(), use.gpus, age(use.end - use.start), percent(use), age(last.at - use.end) + " ago"])));
}
function gpuCard(gpu) {
  // A node that is not ready starts no jobs, so its unused GPUs are not shown as free.
  const unused = last.is_ready ? ["good", "free"] : ["soft", "idle"];
  const state = gpu.is_out ? ["bad", "out"] : gpu.jobs.length ? ["", "in use"] : unused;
  const card = make("div", "card" + (gpu.is_out ? " out" : ""),
    make("div", "head", make("span", "", "GPU " + gpu.index + " · " + gpu.model), make("span", state[0], state[1])),
    make("div", "soft small", [gpu.file, gpu.id].filter(Boolean).join(" · ")));
  if (gpu.utilization != null) card.append(meter("use", gpu.utilization / 100, "", gpu.utilization + " %"));
  if (gpu.last_hour) card.append(make("div", "meter", make("span", "soft", "last hour"), make("span", "hour", gpu.last_hour)));
  if (gpu.memory_mib) {
    const [used, total] = gpu.memory_mib;
    card.append(meter("memory", total ? used / total : 0, "", gib(used) + " / " + gib(total) + " GiB"));
  }
  if (gpu.watts != null)
    card.append(meter("power", gpu.watts_limit ? gpu.watts / gpu.watts_limit : 0, "",
      gpu.watts + (gpu.watts_limit ? " / " + gpu.watts_limit : "") + " W"));
  if (gpu.temperature != null)
    card.append(meter("heat", gpu.temperature / 100, gpu.temperature >= 85 ? "warn" : "", gpu.temperature + " °C"));
  const since = gpu.for_seconds == null ? "" : " for " + age(gpu.for_seconds);
  card.append(make("div", "jobs", gpu.jobs.length ? who(gpu.jobs) + since : make("span", "soft", "no job" + since)));
  for (const fault of gpu.faults) card.append(make("div", "bad small", fault));
  return card;
}
function table(heads, rows) {
  const cell = (tag, head, inner) => make(tag, head.words || "", inner);
  const named = (head, inner) => {
    const one = cell("td", head, inner);
    one.dataset.name = head.name;
    return one;
  };
  return make("div", "wide", make("table", "",
    make("thead", "", make("tr", "", ...heads.map(head => cell("th", head, head.name)))),
    make("tbody", "", ...rows.map(row => make("tr", "", ...row.map((inner, i) => named(heads[i], inner)))))));
}
const none = text => make("div", "card soft", text);
const head = (name, words) => ({ name, words });

function nodeGpus(node) {
  if (!node.gpus.length) return "–";
  const free = node.gpus.filter(gpu => gpu.state === "free").length;
  return free + " of " + node.gpus.length + " free";
}
function nodeJobs(node) {
  const on = [];
  for (const gpu of node.gpus) {
    const jobs = gpu.state === "shared" ? gpu.jobs : gpu.job ? [{ job: gpu.job, user: gpu.user }] : [];
    if (jobs.length) on.push("GPU " + gpu.index + ": " + jobs.map(job => job.job + " (" + job.user + ")").join(", "));
    else if (gpu.state === "allocated") on.push("GPU " + gpu.index + ": in use");
  }
  return on.join("; ") || (node.jobs.length ? node.jobs.slice(0, 8).map(job => job.job + " (" + job.user + ")").join(", ") : "–");
}
function nodeState(node) {
  const isGood = node.responding && ["idle", "mixed", "allocated", "completing", "planned", "powered_down", "powering_up"].includes(node.state);
  const text = node.state + (node.responding ? "" : ", not responding") + (node.reason ? " (" + node.reason + ")" : "");
  return make("span", isGood ? "" : "bad", text);
}
// The tasks of an array are one row, which a click expands.
const expanded = new Set();
function arrays(jobs) {
  const groups = new Map();
  for (const job of jobs) {
    const key = job.id.includes("_") ? job.id.split("_")[0] + "_" : job.id;
    groups.set(key, [...(groups.get(key) || []), job]);
  }
  return [...groups];
}
const jobRow = job =>
  [job.id, job.name, job.user, job.state.toLowerCase(), job.gpus || "", job.cpus, job.time, job.partition, job.waits_for.replace(/^waits for /, "")];
function arrayRows([key, tasks], arrays) {
  const array = arrays.find(one => one.id + "_" === key);
  if (!array || array.tasks === 1) return [jobRow(tasks[0])];
  const [first] = tasks, isOpen = expanded.has(key), waiting = tasks.find(job => job.waits_for);
  const button = make("button", "", (isOpen ? "▾ " : "▸ ") + key + "*");
  button.setAttribute("aria-expanded", isOpen);
  button.onclick = () => {
    if (!expanded.delete(key)) expanded.add(key);
    draw(last);
  };
  const all = jobRow({ ...first, state: array.running + " of " + array.tasks + " run", waits_for: waiting ? waiting.waits_for : "" });
  const hidden = array.tasks - tasks.length;
  const rest = hidden ? [[key + "…", count(hidden, "more task"), ...all.slice(2).map(() => "")]] : [];
  return [[button, ...all.slice(1)], ...(isOpen ? [...tasks.map(jobRow), ...rest] : [])];
}
function cluster(slurm) {
  if (slurm.Err != null) {
    at("queue-title").textContent = "Queue";
    at("nodes-title").textContent = "Nodes";
    show("queue", none("slurmctld does not respond: " + slurm.Err));
    show("nodes", none("unknown while slurmctld does not respond"));
    return;
  }
  const known = slurm.Ok;
  at("queue-title").textContent = "Queue: " + known.running + " running, " + known.pending + " waiting";
  at("nodes-title").textContent = count(known.node_count, "node");
  show("queue", known.jobs.length ? table(
    [head("job"), head("name", "long"), head("user"), head("state"), head("GPUs", "n"), head("CPUs", "n"), head("time", "n"), head("partition"),
      head("waits for", "long")],
    [...arrays(known.jobs).flatMap(one => arrayRows(one, known.arrays)),
      ...(known.more ? [["…", count(known.more, "more job"), "", "", "", "", "", "", ""]] : [])])
    : none("no jobs"));
  show("nodes", known.nodes.length ? table(
    [head("node"), head("state", "long"), head("CPUs", "n"), head("memory", "n"), head("GPUs"), head("jobs", "long")],
    known.nodes.map(node => [node.name, nodeState(node), node.cpus_allocated + " / " + node.cpus,
      gib(node.memory_allocated_mib) + " / " + gib(node.memory_mib) + " GiB", nodeGpus(node), nodeJobs(node)]))
    : none("no nodes yet"));
}
function daemons(all) {
  const state = one => make("span", one.is_up ? "good" : one.state === "finished" ? "" : "bad", one.state);
  show("daemons", all.length ? table(
    [head("daemon"), head("state"), head("for", "n"), head("restarts", "n"), head("last end", "long")],
    all.map(one => [one.name, state(one), age(one.for_seconds), one.restarts, one.last_exit || ""]))
    : none("slurminit is not running in this container"));
}

let last = null, heard = 0, isLost = false;
function draw(state) {
  const name = state.node || "slurminit";
  document.title = (state.is_ready ? "" : "! ") + name;
  at("name").textContent = name;
  at("ready").className = state.is_ready ? "good" : "bad";
  at("ready").textContent = state.is_ready ? "ready" : "not ready: " + state.why;
  at("version").textContent = state.version;
  const free = state.gpus.filter(gpu => !gpu.jobs.length && !gpu.is_out).length;
  at("gpus-title").textContent = state.gpus.length ? count(state.gpus.length, "GPU") + ", " + free + (state.is_ready ? " free" : " idle") : "GPUs";
  const cards = make("div", "cards", ...state.gpus.map(gpuCard));
  show("gpus", state.gpus.length ? cards : none("this container has no GPUs"));
  at("faults-part").hidden = !state.faults.length;
  show("faults", ...state.faults.map(fault => make("li", "", make("span", "soft", age(fault.age) + " ago "), fault.line)));
  cluster(state.slurm);
  ended(state.job_uses);
  daemons(state.daemons);
}
function tick() {
  const notes = [], note = (text, words) => notes.push(make("div", "note" + (words || ""), text));
  const silence = (Date.now() - heard) / 1000;
  if (isLost) note(last ? "Connection lost: the data are " + age(silence) + " old; will retry."
    : "slurminit does not respond; will retry.", " lost");
  if (last) {
    if (last.is_simulated) note("The GPUs are simulated: nothing here is measured on hardware.");
    if (last.simulated_nodes) note("The nodes are simulated: all of them run in this container.");
    if (last.notice) note("GPUs and this node: " + last.notice);
    if (last.is_stale && last.report_age != null)
      note("The last GPU report is " + age(last.report_age + silence) + " old; its measurements are left out.", " lost");
    else if (last.is_stale && last.gpus.length) note("No GPU report: the agent is off or has not started.");
  }
  const texts = notes.map(one => one.textContent).join("\n");
  if (texts !== tick.texts) show("notes", ...notes);
  tick.texts = texts;
  for (const id of ["all", "ready"]) at(id).classList.toggle("stale", isLost);
  at("live").className = isLost ? "bad" : "soft";
  at("live").textContent = isLost ? "not connected" : heard ? "live" : "connecting …";
}
function poll() {
  const received = state => {
    last = state;
    heard = Date.now();
    isLost = false;
    draw(state);
  };
  const failed = () => {
    heard ||= Date.now();
    isLost = true;
  };
  fetch("/api/state", { signal: AbortSignal.timeout(15000) })
    .then(answer => answer.ok ? answer.json() : Promise.reject(answer.status))
    .then(received, failed)
    .finally(() => {
      tick();
      setTimeout(poll, 2000);
    });
}
poll();
setInterval(tick, 1000);
