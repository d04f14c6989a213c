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

/** 3725 -> "1 h 2 min", as show_time in calculator/units.py has it. */
export function showDuration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 120) return `${whole} s`;
  const days = whole / 86400;
  if (days >= 2) return days < 730 ? `${showNumber(days, days < 99.5 ? 2 : 3)} days` : `${showNumber(days / 365, 2)} years`;
  const minutes = Math.round(whole / 60);
  const parts = [[Math.floor(minutes / 60), "h"], [minutes % 60, "min"]];
  return parts.filter(([count]) => count).map((part) => part.join(" ")).join(" ");
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
