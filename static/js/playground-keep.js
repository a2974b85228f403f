// Keeps the chat as it stands, under its address and in the list of chats.
import { keep } from "./playground-stream.js";
import { questionOf } from "./playground-settings.js";

const said = (messages) => messages.filter((message) => message.content).map(plain);
const plain = ({ role, content, facts, fault, others, place }) => ({ role, content, facts, fault, others: others?.map(said), place });

export async function keepChat(root, chat, messages) {
  const kept = await keep(root.dataset.keep, { id: chat, messages: questionOf(root, said(messages)).messages });
  if (!kept || kept.id === chat) return chat;
  history.replaceState(null, "", `?chat=${kept.id}`);
  const entry = document.createElement("li");
  entry.append(Object.assign(document.createElement("a"), { href: `?chat=${kept.id}`, textContent: kept.title }));
  root.querySelector("[data-no-chats]")?.remove();
  root.querySelector("[data-chats]").prepend(entry);
  return kept.id;
}
