// What the settings beside a chat say; an empty field is left to the server. `root` holds the fields of one chat.
const field = (root, name) => root.querySelector(`[name="${name}"]`);
const text = (root, name) => field(root, name)?.value.trim() ?? "";
const number = (root, name) => (text(root, name) === "" ? null : Number(text(root, name)));

export function questionOf(root, messages) {
  const system = text(root, "system");
  return {
    model: text(root, "model"),
    replica: number(root, "replica"),
    temperature: number(root, "temperature"),
    top_p: number(root, "top_p"),
    seed: number(root, "seed"),
    max_tokens: number(root, "max_tokens"),
    messages: [...(system ? [{ role: "system", content: system }] : []), ...messages],
  };
}

// A replica serves one model, so that with one chosen there is no model left to choose.
export function lockModel(root) {
  field(root, "model").disabled = text(root, "replica") !== "";
}

// A kept chat begins with its system prompt, which goes back into its field.
export function withoutSystem(root, kept) {
  if (kept[0]?.role !== "system") return kept;
  field(root, "system").value = kept[0].content;
  return kept.slice(1);
}
