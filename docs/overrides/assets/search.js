/* The search's worker: Material's own, between a query in words that its index can rank and a better order of pages.

   As typed, "--csv" excludes what it should find, since lunr reads leading dashes so, and in "revenue by campaign"
   every word is a prefix, so that "by" finds every byte. */

const FILLERS = new Set(
  ("a about all an and any are as at be by can do does for from had has have how i if in into is it its me my of on" +
    " one or our per so some than that the their them there they this to was we what when where which who whose why" +
    " will with would you your").split(" "),
);

/** Return a word without an ending that others of its meaning may lack: what is left is searched as a prefix. */
function stem(word) {
  const cut = word.replace(/(?:ies|ing|ed|es|s|e|y)$/, "");
  return cut.length > 3 ? cut : word;
}

/** Return what to search for: words, and the parts of words with hyphens, all of which an option requires. */
function termsOf(typed) {
  const words = typed.toLowerCase().split(/[\s,;:!?()]+/).filter(Boolean);
  const asked = words.filter((word) => !FILLERS.has(word.replace(/['’].*/, "")));
  return (asked.length ? asked : words).flatMap((word) => {
    const parts = word.replace(/['’]s?$/, "").split(/[^\p{L}\p{N}_.]+/u).filter(Boolean);
    const isRequired = word.startsWith("-");
    return parts.map((part) => ({ word: part, stem: isRequired ? part : stem(part), isRequired }));
  });
}

/** Return the query for terms: whole words count more than words that begin as a stem, to which Material adds *. */
function queryOf(terms) {
  return terms.map(({ word, stem, isRequired }) => (isRequired ? `+${word}*` : `${word}^3 ${stem}`)).join(" ");
}

/** Return the option that was typed, with dashes or as its words; null if a page's section cannot contain it. */
function optionOf(typed) {
  const words = typed.toLowerCase().match(/^-*([a-z][a-z0-9]*(?:[\s-]+[a-z0-9]+)*)$/);
  const isOption = words && (typed.startsWith("-") || /[\s-]/.test(words[1]));
  return isOption ? "--" + words[1].replace(/[\s-]+/g, "-") : null;
}

/** Order results by whether a section defines the option or else names it; the rest stays as it was. */
function orderByOption(items, option) {
  const named = new RegExp(`<code>[^<]*(?<![\\w-])${option}(?![\\w-])[^<]*</code>(:?)`, "g");
  const weigh = ({ text }) =>
    Math.max(0, ...Array.from(text.replace(/<\/?mark[^>]*>/g, "").matchAll(named), (found) => (found[1] ? 2 : 1)));
  const byWeight = (one, other) => other.weight - one.weight;
  return items
    .map((sections) => {
      const weighed = sections.map((section) => ({ section, weight: weigh(section) })).sort(byWeight);
      return { sections: weighed.map(({ section }) => section), weight: weighed[0].weight };
    })
    .sort(byWeight)
    .map(({ sections }) => sections);
}

/** Keep one entry of a result's found and missing terms for each word, found by the word or by its stem. */
function nameTerms(section, terms) {
  if (!Object.keys(section.terms).length) return section;
  const found = terms.map(({ word, stem }) => [word, Boolean(section.terms[word] || section.terms[stem])]);
  return { ...section, terms: Object.fromEntries(found) };
}

const send = self.postMessage.bind(self);
let asked = null;
self.postMessage = (message) => {
  if (message.type === 3 && asked) {
    const items = message.data.items.map((sections) => sections.map((one) => nameTerms(one, asked.terms)));
    message.data.items = asked.option ? orderByOption(items, asked.option) : items;
  }
  send(message);
};
addEventListener("message", ({ data }) => {
  if (data.type !== 2) return;
  const isQuoted = data.data.includes('"'); // lunr's own way to ask for exact words
  asked = isQuoted ? null : { terms: termsOf(data.data), option: optionOf(data.data) };
  if (asked) data.data = queryOf(asked.terms);
});
importScripts(new URLSearchParams(location.search).get("material"));
