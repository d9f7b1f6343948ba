// Whether the browser asks, for its person, that nothing be kept or sent.

/** Global Privacy Control, as it is set now: in a page and in a service worker. */
export function isUnderPrivacyControl(): boolean {
  return (navigator as { globalPrivacyControl?: boolean }).globalPrivacyControl === true;
}
