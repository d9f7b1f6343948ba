// Loaded lazily: the cipher and the post-quantum hybrid that WebCrypto does not have everywhere.
export { AEAD_ChaCha20Poly1305 as chacha20Poly1305, KEM_MLKEM768_X25519 as mlkem768X25519 } from "@panva/hpke-noble";
