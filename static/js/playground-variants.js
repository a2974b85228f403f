// Earlier answers to the same question, each with what was said after it: `others` in their order, and the place of the shown one among them.
function all(messages, index) {
  const [{ others = [], place = 0, ...shown }, ...after] = messages.slice(index);
  return { place, tails: [...others.slice(0, place), [shown, ...after], ...others.slice(place)] };
}

// The messages with an empty answer in the place of this one, which is kept beside it.
export function askedAgain(messages, index) {
  const { tails } = all(messages, index);
  return [...messages.slice(0, index), { role: "assistant", content: "", others: tails, place: tails.length }];
}

export function turned(messages, index, by) {
  const { place, tails } = all(messages, index);
  const [shown, ...after] = tails[place + by];
  const others = tails.filter((_, at) => at !== place + by);
  return [...messages.slice(0, index), { ...shown, others, place: place + by }, ...after];
}

export function showVariants(element, { others, place }) {
  const tools = element.querySelector("[data-variants]");
  tools.hidden = !others?.length;
  if (tools.hidden) return;
  tools.querySelector("[data-text]").textContent = `${place + 1} / ${others.length + 1}`;
  tools.querySelector("[data-do='earlier']").disabled = place === 0;
  tools.querySelector("[data-do='later']").disabled = place === others.length;
}
