// Dates as cells of their own: the day of the week, the day, the hour: maskedlark/encoding/dates.py in Python.
// A time is taken as it is written, in its own zone; Unix seconds are UTC.

const WEEKDAYS = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
const DAY_MS = 86_400_000;
const TIME =
  "(?:[T ]+([01]?[0-9]|2[0-3]):[0-5][0-9](?::[0-6][0-9](?:[.,][0-9]+)?)?(?: ?(?:Z|UTC|[+-][0-9]{2}:?[0-9]{2}))?)?";
const ISO = new RegExp(`^([0-9]{4})[-/.]([0-9]{1,2})[-/.]([0-9]{1,2})${TIME}$`);
const DOTTED = new RegExp(`^([0-9]{1,2})\\.([0-9]{1,2})\\.([0-9]{4})${TIME}$`);
const SLASHED = new RegExp(`^([0-9]{1,2})[/-]([0-9]{1,2})[/-]([0-9]{4})${TIME}$`);
const MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const MONTH =
  "(jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sep(?:t(?:ember)?)?" +
  "|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\\.?";
const DAY_THEN_NAME = new RegExp(`^([0-9]{1,2})[ -]${MONTH},?[ -]([0-9]{4})${TIME}$`, "i");
const NAME_THEN_DAY = new RegExp(`^${MONTH}[ -]([0-9]{1,2}),?[ -]([0-9]{4})${TIME}$`, "i");
const UNIX = /^(?:([0-9]{9,10})(?:\.[0-9]+)?|([0-9]{12,13}))$/;
const PART = /^([^]+)@(weekday|day|hour)$/;

/** The column of dates of which a feature's column is a part, and the part; null if its name is no part's. */
export function partOf(name: string): readonly [of: string, part: string] | null {
  const found = PART.exec(name);
  return found === null ? null : [found[1]!, found[2]!];
}

/** What stands first where slashes part a date: 13/04/2026 or 04/13/2026. */
export type DateOrder = "dmy" | "mdy";

/**
 * A part of a date as a cell: "Sat", days since 1970, or the hour (null without a time); undefined where the cell is no date.
 *
 * @param order Of a date with slashes; without it the cell must show it.
 */
export function datePart(said: string, part: string, order?: DateOrder): string | null | undefined {
  const found = UNIX.test(said) ? unix(said) : written(said, order ?? shownOrder(said));
  if (found === undefined) return undefined;
  if (part === "hour") return found.hour === undefined ? null : String(found.hour);
  return part === "day" ? String(found.day) : WEEKDAYS[(((found.day + 3) % 7) + 7) % 7]!;
}

/** What is wrong with a cell that is no date of this order. */
export function whyNoDate(said: string, order?: DateOrder): string {
  const isOther = order !== undefined && written(said, order === "dmy" ? "mdy" : "dmy") !== undefined;
  if (!isOther) return "it holds no date: write dates as 2026-11-28 or 2026-11-28 04:50";
  const [found, expected] = order === "dmy" ? ["month", "day"] : ["day", "month"];
  return `it holds a date with the ${found} first, but this column's dates with slashes have the ${expected} first (${order})`;
}

interface Moment {
  readonly day: number;
  readonly hour: number | undefined;
}

function unix(said: string): Moment {
  const seconds = Math.floor(Math.round(Number(said) * (UNIX.exec(said)![2] === undefined ? 1e6 : 1e3)) / 1e6);
  return { day: Math.floor(seconds / 86_400), hour: Math.floor((seconds % 86_400) / 3_600) };
}

/** The order that a date with slashes shows by itself, with one number above 12. */
function shownOrder(said: string): DateOrder | undefined {
  const slashed = SLASHED.exec(said);
  if (slashed === null || Number(slashed[1]) > 12 === Number(slashed[2]) > 12) return undefined;
  return Number(slashed[1]) > 12 ? "dmy" : "mdy";
}

/** What a written date says; of one with slashes only if its order is known. */
function written(said: string, order: DateOrder | undefined): Moment | undefined {
  const iso = ISO.exec(said);
  if (iso !== null) return moment(iso[1]!, iso[2]!, iso[3]!, iso[4]);
  const dotted = DOTTED.exec(said);
  if (dotted !== null) return moment(dotted[3]!, dotted[2]!, dotted[1]!, dotted[4]);
  const dayFirst = DAY_THEN_NAME.exec(said);
  if (dayFirst !== null) return moment(dayFirst[3]!, monthOf(dayFirst[2]!), dayFirst[1]!, dayFirst[4]);
  const nameFirst = NAME_THEN_DAY.exec(said);
  if (nameFirst !== null) return moment(nameFirst[3]!, monthOf(nameFirst[1]!), nameFirst[2]!, nameFirst[4]);
  const slashed = SLASHED.exec(said);
  if (slashed === null || order === undefined) return undefined;
  const [day, month] = order === "dmy" ? [slashed[1]!, slashed[2]!] : [slashed[2]!, slashed[1]!];
  return moment(slashed[3]!, month, day, slashed[4]);
}

function monthOf(name: string): string {
  return String(MONTHS.indexOf(name.slice(0, 3).toLowerCase()) + 1);
}

function moment(year: string, month: string, day: string, hour: string | undefined): Moment | undefined {
  const at = new Date(0);
  at.setUTCFullYear(Number(year), Number(month) - 1, Number(day));
  if (Number(year) < 1 || at.getUTCMonth() !== Number(month) - 1 || at.getUTCDate() !== Number(day)) return undefined;
  return { day: at.getTime() / DAY_MS, hour: hour === undefined ? undefined : Number(hour) };
}
