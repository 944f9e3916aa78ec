"use strict";
// The page is whole without this: it only makes notes quicker to see, and the picture wider.
(() => {
  const note = document.createElement("div");
  note.id = "note";
  note.hidden = true;
  document.body.append(note);
  for (const title of document.querySelectorAll("svg title")) {
    title.parentNode.dataset.note = title.textContent;
    title.remove();
  }
  document.addEventListener("pointermove", (event) => {
    const target = event.target instanceof Element ? event.target.closest("[data-note]") : null;
    note.hidden = !target;
    if (!target) return;
    const [first, ...rest] = target.dataset.note.split("\n");
    const head = document.createElement("b");
    head.textContent = first;
    note.replaceChildren(head, rest.join("\n"));
    const room = 14;
    const left = Math.min(event.clientX + room, innerWidth - note.offsetWidth - room);
    const below = event.clientY + room;
    const fits = below + note.offsetHeight < innerHeight;
    note.style.left = Math.max(room, left) + "px";
    note.style.top = (fits ? below : event.clientY - note.offsetHeight - room) + "px";
  });

  const canvas = document.querySelector(".canvas");
  if (!canvas) return;
  const scroll = canvas.parentNode;
  const shown = document.querySelector(".zoom output");
  document.querySelector(".zoom").hidden = false;
  let zoom = 1;
  // `at` is the part of the window's width that stays where it is.
  const setZoom = (next, at) => {
    next = Math.min(64, Math.max(1, next));
    const middle = (scroll.scrollLeft + at * scroll.clientWidth) / canvas.offsetWidth;
    zoom = next;
    canvas.style.width = zoom * 100 + "%";
    canvas.dataset.zoom = zoom >= 64 ? 64 : zoom >= 16 ? 16 : zoom >= 4 ? 4 : 1;
    shown.textContent = zoom + "×";
    scroll.scrollLeft = middle * canvas.offsetWidth - at * scroll.clientWidth;
  };
  for (const button of document.querySelectorAll(".zoom button")) {
    button.addEventListener("click", () => {
      setZoom(button.dataset.step > 0 ? zoom * 2 : zoom / 2, 0.5);
    });
  }
  scroll.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    const box = scroll.getBoundingClientRect();
    setZoom(event.deltaY < 0 ? zoom * 2 : zoom / 2, (event.clientX - box.left) / box.width);
  }, { passive: false });
  canvas.addEventListener("dblclick", (event) => {
    const node = event.target.closest(".node");
    if (!node) return;
    const left = Number(node.dataset.left);
    const width = Number(node.dataset.width);
    setZoom(2 ** Math.floor(Math.log2(0.9 / width)), 0.5);
    scroll.scrollLeft = (left + width / 2) * canvas.offsetWidth - scroll.clientWidth / 2;
  });
})();
