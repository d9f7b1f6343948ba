// exp(-n / d) of whole numbers in fixed point, as exactly as asked for. Used where a coin must be decided exactly.

/** exp(-n / d) times 2^bits, rounded down; too small by less than 2^-(bits - 16). */
export function expNegative(numerator: bigint, denominator: bigint, bits: bigint): bigint {
  const guard = bits + 64n;
  const whole = numerator / denominator;
  const rest = series(numerator - whole * denominator, denominator, guard);
  return (rest * power(series(1n, 1n, guard), whole, guard)) >> (guard + 64n);
}

/** The alternating series of exp(-n / d) for n <= d, in units of 2^-bits. */
function series(numerator: bigint, denominator: bigint, bits: bigint): bigint {
  let term = 1n << bits;
  let sum = term;
  for (let k = 1n; term !== 0n; k++) {
    term = (term * numerator) / (denominator * k);
    sum += k & 1n ? -term : term;
  }
  return sum;
}

function power(base: bigint, exponent: bigint, bits: bigint): bigint {
  let result = 1n << bits;
  let square = base;
  for (let rest = exponent; rest > 0n; rest >>= 1n) {
    if (rest & 1n) result = (result * square) >> bits;
    square = (square * square) >> bits;
  }
  return result;
}
