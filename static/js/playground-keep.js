// Keeps the chat as it stands, under its address and in the list of chats.
import { keep } from "./playground-stream.js";
import { questionOf } from "./playground-settings.js";

const plain = ({ role, content, facts }) => ({ role, content, facts });

export async function keepChat(root, chat, messages) {
  const said = messages.filter((message) => message.content).map(plain);
  const kept = await keep(root.dataset.keep, { id: chat, messages: questionOf(root, said).messages });
  if (!kept || kept.id === chat) return chat;
  history.replaceState(null, "", `?chat=${kept.id}`);
  const entry = document.createElement("li");
  entry.append(Object.assign(document.createElement("a"), { href: `?chat=${kept.id}`, textContent: kept.title }));
  root.querySelector("[data-no-chats]")?.remove();
  root.querySelector("[data-chats]").prepend(entry);
  return kept.id;
}
