// Numbers and times as texts for readers.

/** 1250000 -> "1 250 000", with spaces that do not break. */
export function showCount(count) {
  return Math.round(count).toString().replace(/\B(?=(\d{3})+$)/g, "\u202f");
}

/** At most three significant digits, for speeds and losses. */
export function showNumber(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  return Math.abs(value) >= 1000 ? showCount(value) : Number(value.toPrecision(digits)).toString();
}

/** 3725 -> "1 h 2 min". */
export function showDuration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min`;
  if (whole < 48 * 3600) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} days`;
}

/** 1400000 -> "1.3 MiB". */
export function showBytes(bytes) {
  const power = Math.min(3, Math.floor(Math.log2(Math.max(1, bytes)) / 10));
  return `${showNumber(bytes / 1024 ** power, 2)} ${["B", "KiB", "MiB", "GiB"][power]}`;
}

export function showDate(seconds) {
  return new Date(seconds * 1000).toLocaleDateString("en-GB", { day: "numeric", month: "long", year: "numeric" });
}

export function showClock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString("en-GB");
}
