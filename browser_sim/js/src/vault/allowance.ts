// How many messages an origin may send: a token bucket, so that a flood is refused at the cost of a comparison.

const MOST = 1_000;
const REFILL_PER_S = 50;

export class Allowance {
  #left = MOST;
  #at: number;

  constructor(nowS: number) {
    this.#at = nowS;
  }

  /** Take the cost of one message, or return false and take nothing. */
  take(cost: number, nowS: number): boolean {
    this.#left = Math.min(MOST, this.#left + Math.max(0, nowS - this.#at) * REFILL_PER_S);
    this.#at = nowS;
    if (this.#left < cost) return false;
    this.#left -= cost;
    return true;
  }
}
