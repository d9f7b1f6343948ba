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

/** A part of a date as a cell: "Sat", days since 1970, or the hour (null without a time); undefined where the cell is no date. */
export function datePart(said: string, part: string): string | null | undefined {
  const found = UNIX.test(said) ? unix(said) : written(said);
  if (found === undefined) return undefined;
  if (part === "hour") return found.hour === undefined ? null : String(found.hour);
  return part === "day" ? String(found.day) : WEEKDAYS[(((found.day + 3) % 7) + 7) % 7]!;
}

interface Moment {
  readonly day: number;
  readonly hour: number | undefined;
}

function unix(said: string): Moment {
  const seconds = Math.floor(Math.round(Number(said) * (UNIX.exec(said)![2] === undefined ? 1e6 : 1e3)) / 1e6);
  return { day: Math.floor(seconds / 86_400), hour: Math.floor((seconds % 86_400) / 3_600) };
}

/** What a written date says; a day and a month parted by slashes only where one of them is above 12. */
function written(said: string): Moment | undefined {
  const iso = ISO.exec(said);
  if (iso !== null) return moment(iso[1]!, iso[2]!, iso[3]!, iso[4]);
  const dotted = DOTTED.exec(said);
  if (dotted !== null) return moment(dotted[3]!, dotted[2]!, dotted[1]!, dotted[4]);
  const dayFirst = DAY_THEN_NAME.exec(said);
  if (dayFirst !== null) return moment(dayFirst[3]!, monthOf(dayFirst[2]!), dayFirst[1]!, dayFirst[4]);
  const nameFirst = NAME_THEN_DAY.exec(said);
  if (nameFirst !== null) return moment(nameFirst[3]!, monthOf(nameFirst[1]!), nameFirst[2]!, nameFirst[4]);
  const slashed = SLASHED.exec(said);
  if (slashed === null || Number(slashed[1]) > 12 === Number(slashed[2]) > 12) return undefined;
  const [day, month] = Number(slashed[1]) > 12 ? [slashed[1]!, slashed[2]!] : [slashed[2]!, slashed[1]!];
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
