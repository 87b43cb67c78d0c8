//! `strftime_now(format)`: the date in UTC, for templates that tell the model what day it is.

use std::fmt::Write;

use minijinja::{Error, ErrorKind};

const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

struct Civil {
    year: i64,
    month: usize,     // 1..=12
    day: i64,         // 1..=31
    day_of_year: i64, // 1..=366
    weekday: usize,   // 0 = Sunday
    seconds: i64,     // of the day
}

/// Howard Hinnant's days-from-civil, inverted.
fn civil(unix_seconds: i64) -> Civil {
    let days = unix_seconds.div_euclid(86_400);
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy_from_march = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy_from_march + 2) / 153;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    let year = yoe + era * 400 + i64::from(month <= 2);
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let day_of_year = if month > 2 {
        doy_from_march + 60 + i64::from(leap)
    } else {
        doy_from_march - 305
    };
    Civil {
        year,
        month: month as usize,
        day: doy_from_march - (153 * mp + 2) / 5 + 1,
        day_of_year,
        weekday: (days + 4).rem_euclid(7) as usize,
        seconds: unix_seconds.rem_euclid(86_400),
    }
}

pub fn strftime(unix_seconds: i64, format: &str) -> Result<String, Error> {
    let c = civil(unix_seconds);
    let (hour, minute, second) = (c.seconds / 3600, c.seconds / 60 % 60, c.seconds % 60);
    let hour12 = (hour + 11) % 12 + 1;
    let (weekday, month) = (DAYS[c.weekday], MONTHS[c.month - 1]);
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(ch) = chars.next() {
        if ch != '%' {
            out.push(ch);
            continue;
        }
        let mut code = chars.next().unwrap_or('%');
        // glibc's "%-d": no padding.
        let unpadded = code == '-';
        if unpadded {
            code = chars.next().unwrap_or('%');
        }
        let width = |w: usize| if unpadded { 0 } else { w };
        let written = match code {
            'Y' => write!(out, "{}", c.year),
            'y' => write!(out, "{:0w$}", c.year.rem_euclid(100), w = width(2)),
            'm' => write!(out, "{:0w$}", c.month, w = width(2)),
            'd' => write!(out, "{:0w$}", c.day, w = width(2)),
            'e' => write!(out, "{:w$}", c.day, w = width(2)),
            'j' => write!(out, "{:0w$}", c.day_of_year, w = width(3)),
            'H' => write!(out, "{hour:0w$}", w = width(2)),
            'I' => write!(out, "{hour12:0w$}", w = width(2)),
            'M' => write!(out, "{minute:0w$}", w = width(2)),
            'S' => write!(out, "{second:0w$}", w = width(2)),
            'p' => write!(out, "{}", if hour < 12 { "AM" } else { "PM" }),
            'A' => write!(out, "{weekday}"),
            'a' => write!(out, "{}", &weekday[..3]),
            'B' => write!(out, "{month}"),
            'b' | 'h' => write!(out, "{}", &month[..3]),
            'F' => write!(out, "{}-{:02}-{:02}", c.year, c.month, c.day),
            'T' => write!(out, "{hour:02}:{minute:02}:{second:02}"),
            'Z' => write!(out, "UTC"),
            'z' => write!(out, "+0000"),
            's' => write!(out, "{unix_seconds}"),
            '%' => write!(out, "%"),
            other => {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    format!("strftime_now does not know %{other}"),
                ))
            }
        };
        written.map_err(|_| Error::from(ErrorKind::WriteFailure))?;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(unix_seconds: i64, format: &str) -> String {
        strftime(unix_seconds, format).unwrap()
    }

    #[test]
    fn dates_are_gregorian() {
        assert_eq!(at(0, "%Y-%m-%d %A %j"), "1970-01-01 Thursday 001");
        assert_eq!(at(951_782_400, "%d %b %Y %j"), "29 Feb 2000 060");
        assert_eq!(
            at(1_704_067_199, "%F %T %a %j"),
            "2023-12-31 23:59:59 Sun 365"
        );
        assert_eq!(at(1_735_603_200, "%e %B %Y, %j"), "31 December 2024, 366");
        assert_eq!(at(1_709_251_200, "%-d %-m %I:%M %p"), "1 3 12:00 AM");
    }

    #[test]
    fn unknown_codes_are_named() {
        assert!(strftime(0, "%Q").unwrap_err().to_string().contains("%Q"));
    }
}
