// SPDX-License-Identifier: Apache-2.0
// The entries of a text, or of a part of one, above what Sphinx finds. MESSAGES has the longest first.
document.addEventListener("DOMContentLoaded", () => {
  const query = new URLSearchParams(location.search).get("q") || "";
  const text = query.trim().replace(/\s+/g, " ");
  const matches = MESSAGES.filter(
    ([pattern, entry]) =>
      new RegExp(pattern, "i").test(text) || (text.length > 9 && entry.includes(text)),
  );
  const list = document.createElement("ul");
  for (const [, entry, address] of matches.slice(0, 5)) {
    const link = list.appendChild(document.createElement("li")).appendChild(document.createElement("a"));
    link.href = address;
    link.textContent = entry;
  }
  document.getElementById("search-results").before(list);
});
