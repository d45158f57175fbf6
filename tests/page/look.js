// Evaluated in the page. Returns the content as text, the elements that are wider than the screen or cut off, and the texts whose
// contrast is below 4.5 (WCAG).
(() => {
  const texts = selector => [...document.querySelectorAll(selector)].map(one => one.innerText);
  const rows = id => [...document.querySelectorAll(id + " tbody tr")].map(row => [...row.cells].map(cell => cell.innerText).join(" | "));
  const all = [...document.body.querySelectorAll("*")].filter(one => one.tagName !== "SCRIPT" && one.offsetParent);
  const own = one => [...one.childNodes].filter(node => node.nodeType === 3).map(node => node.data.trim()).join("");
  const linear = part => part / 255 <= .04045 ? part / 255 / 12.92 : ((part / 255 + .055) / 1.055) ** 2.4;
  const luminance = color => {
    const [r, g, b] = color.match(/[\d.]+/g).map(linear);
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const background = one => {
    for (; one; one = one.parentElement) {
      const color = getComputedStyle(one).backgroundColor;
      if (!color.endsWith(", 0)")) return color;
    }
    return "rgb(255, 255, 255)";
  };
  const contrast = one => {
    const [a, b] = [getComputedStyle(one).color, background(one)].map(luminance);
    return (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
  };
  return {
    name: texts("h1")[0], ready: texts("#ready")[0], live: texts("#live")[0], titles: texts("h2"),
    gpus: texts("#gpus .card"), faults: texts("#faults li"), queue: rows("#queue"), nodes: rows("#nodes"), daemons: rows("#daemons"),
    alien: document.querySelectorAll("main img, main b, main a, main script, main iframe").length,
    width: innerWidth, whole: document.documentElement.scrollWidth, background: getComputedStyle(document.body).backgroundColor,
    beyond: all.filter(one => one.getBoundingClientRect().right > innerWidth + .5).map(one => one.outerHTML.slice(0, 200)),
    cut: all.filter(one => own(one) && one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).overflowX === "hidden").map(own),
    faint: all.filter(one => own(one) && contrast(one) < 4.5).map(one => own(one) + ": " + contrast(one).toFixed(2)),
  };
})()
