// ask(path, question, {signal, token(text), done(facts)}) reads one streamed answer; throws an Error with words for a person.
function csrfToken() {
  return JSON.parse(document.body.getAttribute("hx-headers"))["X-CSRFToken"];
}

function post(path, body, signal) {
  const headers = { "Content-Type": "application/json", "X-CSRFToken": csrfToken() };
  return fetch(path, { method: "POST", headers, body: JSON.stringify(body), signal });
}

// Saves the chat; what it is called, or null when it could not be saved.
export async function keep(path, conversation) {
  try {
    const response = await post(path, conversation);
    return response.ok ? await response.json() : null;
  } catch {
    return null;
  }
}

async function refusal(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `The server answered with ${response.status}. Reload the page and try again.`;
  }
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trim()).join("");
      if (data) yield data;
    }
  }
}

export async function ask(path, question, { signal, token, done }) {
  const response = await post(path, question, signal);
  if (!response.ok) throw new Error(await refusal(response));
  let finished = false;
  let facts = {};
  for await (const data of events(response)) {
    if (data === "[DONE]") { finished = true; break; }
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message ?? "The answer was cut off.");
    const delta = chunk.choices?.[0]?.delta ?? {};
    if (delta.content) token(delta.content);
    if (delta.reasoning_content) token(delta.reasoning_content);
    const reason = chunk.choices?.[0]?.finish_reason;
    facts = { ...facts, ...(chunk.e2llm ?? {}), ...(reason ? { finish_reason: reason } : {}), ...(chunk.usage ? { usage: chunk.usage } : {}) };
  }
  if (!finished) throw new Error("The answer was cut off before its end. Continue sends what there is and asks for the rest.");
  done(facts);
}
