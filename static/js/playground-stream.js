// ask(path, question, {signal, token(text)}) reads one streamed answer and never throws: {facts, fault} tell how it ended.
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

async function refusal(response, watch) {
  try {
    const { message, request_id } = (await response.json()).error;
    if (request_id) watch.told.request_id = request_id;
    return message;
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

// The gateway tells its figures behind the first token and at the end; what an answer lacks that never gets there, this page has timed.
class Watch {
  asked = performance.now();
  times = [];
  told = {};

  token() { this.times.push(performance.now()); }

  note(chunk) {
    for (const [name, value] of Object.entries(factsOf(chunk))) if (value !== null) this.told[name] = value;
  }

  unfinished(reason) {
    const [first, last] = [this.times[0] ?? performance.now(), this.times.at(-1)];
    if (!this.times.length) return { ...this.told, stayed_seconds: (first - this.asked) / 1000, finish_reason: reason };
    const rate = last > first ? (1000 * (this.times.length - 1)) / (last - first) : null;
    const timed = { ttft_seconds: (first - this.asked) / 1000, tokens_per_second: rate, completion_tokens: this.times.length };
    return { ...timed, ...this.told, finish_reason: reason };
  }
}

function factsOf(chunk) {
  const reason = chunk.choices?.[0]?.finish_reason;
  const usage = chunk.usage ? { prompt_tokens: chunk.usage.prompt_tokens, completion_tokens: chunk.usage.completion_tokens } : {};
  return { ...(chunk.e2llm ?? {}), ...(reason ? { finish_reason: reason } : {}), ...usage };
}

async function read(response, watch, token) {
  for await (const data of events(response)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    watch.note(chunk);
    if (chunk.error) throw new Error(chunk.error.message ?? "The answer was cut off.");
    const delta = chunk.choices?.[0]?.delta ?? {};
    const text = (delta.content ?? "") + (delta.reasoning_content ?? "");
    if (text) { watch.token(); token(text); }
  }
  throw new Error("The answer was cut off before its end. Continue sends what there is and asks for the rest.");
}

export async function ask(path, question, { signal, token }) {
  const watch = new Watch();
  try {
    const response = await post(path, question, signal);
    if (!response.ok) throw new Error(await refusal(response, watch));
    await read(response, watch, token);
    return { facts: watch.times.length ? watch.told : { ...watch.told, finish_reason: "silent" }, fault: "" };
  } catch (error) {
    if (error.name === "AbortError") return { facts: watch.unfinished("stopped"), fault: "" };
    const lost = error instanceof TypeError || error instanceof SyntaxError ? "The connection to this site was lost. Check that it runs, then try again." : error.message;
    return { facts: watch.unfinished(watch.times.length ? "cut" : "unanswered"), fault: lost };
  }
}
