"""Federated training: the pure functions that devices and the ad server run.

A network and a simulation run the same functions, so that without noise both train the same model.

One round of a strategy whose updates the helpers sum::

    bound = UpdateBound(clip_norm=1.0)
    strategy = DpFedAvg(devices=1000, sampling_rate=0.1, rounds=50, noise_multiplier=1.0, bound=bound)
    state = strategy.start(model.initial(randomness))              # ad server, once
    asked = strategy.next_round(state)                             # ad server: a Round; None after the last
    part = toss(asked.terms.sampling_rate, strategy.cover_rate, randomness)    # each device, alone
    vectors = strategy.device_vectors(model, asked, [examples], [randomness])  # a device that was drawn
    cover = strategy.cover_vector(model)                           # a device that was not
    summed = vectors.sum(axis=0) + noise                           # both helpers: shares add in the field
    state = strategy.step(state, asked, summed)                    # ad server

**Device step.** In: the round's weights (float32, flat), the device's examples, the strategy's public
settings, a source of random bytes. Out: one int64 vector of `parameters + bound.extra_coordinates` entries:
the clipped, weighted difference in units of 2^-frac_bits, truncated toward zero; then the weight
(`is_weight_summed`), then the count (`is_counted`). Its exact integer L2 norm is at most `bound.sensitivity`.
Row i of `device_vectors` depends on device i's examples and bytes alone, to the bit.

**Sum.** Integers, so the order does not matter: helpers add shares of these vectors in the field and read the
total as a signed number (`maskedlark.numbers.field.to_signed`). Each helper's noise is a discrete Gaussian of
`noise_scale(GAUSSIAN, multiplier, bound.sensitivity)` units, where multiplier is `terms.noise_multiplier`
(full), or that over sqrt 2 (split). A noise-off round over the network and in a simulation gives the same
sum, hence the same next model, bit for bit, if devices draw from the same random streams.

**Random streams of a device.** With a seed for tests and simulations, device d of round r draws from
`device_stream(seed, r, d)`: first the 16 bytes of `toss`, then those of `batch_schedule` (8 an example and
pass), then LINE's noise. Real devices use the system's source.

**Server step.** In: the state, the round, the noised total. Out: the next state; `ServerState.encode` is what
a checkpoint stores. The mean has a fixed denominator q W, or, with `least_weight`, max(q W_min, noised sum of
weights).

**Bytes that all parties agree on.** `canonical.encode(strategy)` (JSON with its kind),
`Round.encode` (canonical terms, then float32 little-endian weights) and `Round.digest`, which goes into HPKE
`info` and the helpers' transcript.

`draw_and_discard` has no rounds and no sum: a device returns a whole noised model instance. `line` sums
vectors that are noised already.

May import: model, privacy, numbers, encoding and the flat files of `maskedlark`.
"""
