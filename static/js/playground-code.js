// The same question as code, for the three usual ways to ask: up to the last message of the person, or an example.
const EXAMPLE = { role: "user", content: "Say hello in one sentence." };
const quote = (value) => JSON.stringify(value);
const PARAMETERS = ["temperature", "top_p", "seed", "max_tokens"];

function body(question) {
  const asked = question.messages.slice(0, question.messages.findLastIndex(({ role }) => role === "user") + 1);
  const messages = asked.length ? asked : [...question.messages.filter(({ role }) => role === "system"), EXAMPLE];
  const set = PARAMETERS.filter((name) => question[name] !== null).map((name) => [name, question[name]]);
  return { model: question.model, messages, ...Object.fromEntries(set) };
}

function curl(endpoint, question) {
  const json = JSON.stringify({ ...body(question), stream: true }, null, 2).replaceAll("'", "'\\''");
  return `curl ${endpoint}/chat/completions \\\n  -H "Authorization: Bearer $E2LLM_API_KEY" \\\n  -H "Content-Type: application/json" \\\n  -d '${json}'`;
}

function python(endpoint, question) {
  const { model, messages, ...parameters } = body(question);
  const set = Object.entries(parameters).map(([name, value]) => `    ${name}=${value},\n`).join("");
  const listed = messages.map((message) => `        {"role": ${quote(message.role)}, "content": ${quote(message.content)}},`).join("\n");
  return `import os\n\nfrom openai import OpenAI\n\nclient = OpenAI(base_url=${quote(endpoint)}, api_key=os.environ["E2LLM_API_KEY"])\nstream = client.chat.completions.create(\n    model=${quote(model)},\n    messages=[\n${listed}\n    ],\n${set}    stream=True,\n)\nfor chunk in stream:\n    if chunk.choices:\n        print(chunk.choices[0].delta.content or "", end="", flush=True)\n`;
}

function javascript(endpoint, question) {
  const options = JSON.stringify({ ...body(question), stream: true }, null, 2);
  return `import OpenAI from "openai";\n\nconst client = new OpenAI({ baseURL: ${quote(endpoint)}, apiKey: process.env.E2LLM_API_KEY });\nconst stream = await client.chat.completions.create(${options});\nfor await (const chunk of stream) {\n  process.stdout.write(chunk.choices[0]?.delta?.content ?? "");\n}\n`;
}

export function showCode(root, endpoint, question) {
  const texts = { curl: curl(endpoint, question), python: python(endpoint, question), javascript: javascript(endpoint, question) };
  for (const [name, text] of Object.entries(texts)) root.querySelector(`[data-code="${name}"]`).textContent = text;
}
