/* The search's worker: Material's own, between a query in words that its index can rank and a better order of pages.

   As typed, "--csv" excludes what it should find, since lunr reads leading dashes so, in "revenue by campaign" every
   word is a prefix, so that "by" finds every byte, and "k-anonymity" finds all that begins with a k. A page's own
   phrases ("Found by" in its text, tags in the index) lift it where they are what was typed. */

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
  const words = typed.toLowerCase().normalize("NFD").replace(/\p{M}/gu, "").split(/[\s,;:!?()]+/).filter(Boolean);
  const asked = words.filter((word) => !FILLERS.has(word.replace(/['’].*/, "")));
  return (asked.length ? asked : words).flatMap((word) => {
    const parts = word.replace(/['’]s?$/, "").split(/[^\p{L}\p{N}_.]+/u).filter(Boolean);
    const isRequired = word.startsWith("-");
    return parts.map((part) => ({ word: part, stem: isRequired ? part : stem(part), isRequired }));
  });
}

/** Return the query for terms: whole words count more than words that begin as a stem, to which Material adds *. */
function queryOf(terms) {
  const queried = ({ word, stem, isRequired }) =>
    isRequired ? `+${word}*` : word.length > 1 ? `${word}^3 ${stem}` : `${word}^3`;
  return terms.map(queried).join(" ");
}

/** Return the option that was typed, with dashes or as its words; null if a page's section cannot contain it. */
function optionOf(typed) {
  const words = typed.toLowerCase().match(/^-*([a-z][a-z0-9]*(?:[\s-]+[a-z0-9]+)*)$/);
  const isOption = words && (typed.startsWith("-") || /[\s-]/.test(words[1]));
  return isOption ? "--" + words[1].replace(/[\s-]+/g, "-") : null;
}

/** Return a text without the marks of what was found in it. */
function unmarked(text) {
  return text.replace(/<\/?mark[^>]*>/g, "");
}

/** Order results by whether a section defines the option or else names it; the rest stays as it was. */
function orderByOption(items, option) {
  const named = new RegExp(`<code>[^<]*(?<![\\w-])${option}(?![\\w-])[^<]*</code>(:?)`, "g");
  const weigh = ({ text }) =>
    Math.max(0, ...Array.from(unmarked(text).matchAll(named), (found) => (found[1] ? 2 : 1)));
  const byWeight = (one, other) => other.weight - one.weight;
  return items
    .map((sections) => {
      const weighed = sections.map((section) => ({ section, weight: weigh(section) })).sort(byWeight);
      return { sections: weighed.map(({ section }) => section), weight: weighed[0].weight };
    })
    .sort(byWeight)
    .map(({ sections }) => sections);
}

/** Return the part of the terms that a phrase consists of; 0 if one of its words was not typed. */
function shareOf(terms, phrase) {
  const stems = termsOf(phrase).map(({ stem }) => stem);
  const typed = new Set(terms.map(({ stem }) => stem));
  return stems.every((one) => typed.has(one)) ? stems.length / typed.size : 0;
}

/** Put first the pages that were typed: by a phrase of their own, or by a name that one of their sections defines. */
function orderByPhrase(items, { terms, name }) {
  const share = (phrase) => shareOf(terms, unmarked(phrase));
  const weigh = ({ location, tags = [] }) =>
    location.toLowerCase().endsWith(`.${name}`) ? 1 : Math.max(0, ...tags.map(share));
  return items
    .map((sections) => {
      const weight = Math.max(...sections.map(weigh));
      return { sections, weight: weight < 0.6 ? 0 : weight };
    })
    .sort((one, other) => other.weight - one.weight)
    .map(({ sections }) => sections);
}

/** Keep one entry of a result's found and missing terms for each word, found by the word or by its stem; no tags. */
function nameTerms(section, terms) {
  const { tags, ...shown } = section;
  if (!Object.keys(section.terms).length) return shown;
  const found = terms.map(({ word, stem }) => [word, Boolean(section.terms[word] || section.terms[stem])]);
  return { ...shown, terms: Object.fromEntries(found) };
}

const send = self.postMessage.bind(self);
let asked = null;
self.postMessage = (message) => {
  if (message.type === 3 && asked) {
    const byPhrase = orderByPhrase(message.data.items, asked);
    const items = asked.option ? orderByOption(byPhrase, asked.option) : byPhrase;
    message.data.items = items.map((sections) => sections.map((one) => nameTerms(one, asked.terms)));
  }
  send(message);
};
addEventListener("message", ({ data }) => {
  if (data.type !== 2) return;
  const isQuoted = data.data.includes('"'); // lunr's own way to ask for exact words
  const name = data.data.trim().toLowerCase();
  asked = isQuoted ? null : { terms: termsOf(data.data), option: optionOf(data.data), name };
  if (asked) data.data = queryOf(asked.terms);
});
importScripts(new URLSearchParams(location.search).get("material"));
