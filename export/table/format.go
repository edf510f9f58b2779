// SPDX-License-Identifier: Apache-2.0

package table

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/internal/size"
)

// Bytes returns bytes as size.Text does; "unknown" for event.Unknown.
func Bytes(n uint64) string { return size.Text(n) }

// signedText returns bytes with their sign: "+1.0 KiB", "-512 B".
func signedText(n int64) string {
	if n < 0 {
		return "-" + Bytes(-uint64(n))
	}
	return "+" + Bytes(uint64(n))
}

// exactText adds the exact number of bytes when the unit hides it.
func exactText(n uint64) string {
	if n == event.Unknown || n < 1024 {
		return Bytes(n)
	}
	return fmt.Sprintf("%s (%s B)", Bytes(n), countText(n))
}

// countText groups thousands: "61,204".
func countText(n uint64) string {
	s := strconv.FormatUint(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// signedCount groups thousands of a number with a sign: "+1,024", "-512", "0".
func signedCount(n int64) string {
	switch {
	case n < 0:
		return "-" + countText(-uint64(n))
	case n > 0:
		return "+" + countText(uint64(n))
	}
	return "0"
}

// bytesText is the exact number of bytes; empty for event.Unknown.
func bytesText(n uint64) string {
	if n == event.Unknown {
		return ""
	}
	return countText(n) + " B"
}

// Plural is "1 gap", "2 gaps".
func Plural(n uint64, one string) string {
	if n == 1 {
		return "1 " + one
	}
	if strings.HasSuffix(one, "s") {
		one += "e"
	}
	return countText(n) + " " + one + "s"
}

// Were is "1 request was", "2 requests were", "no request was".
func Were(n int, one string) string {
	switch n {
	case 0:
		return "no " + one + " was"
	case 1:
		return "1 " + one + " was"
	}
	return Plural(uint64(n), one) + " were"
}

// Duration is how long something took: with three digits at most below a minute, and never 0 where it is more.
func Duration(d time.Duration) string {
	switch {
	case d < 0:
		return "-" + Duration(-d)
	case d == 0:
		return "0 s"
	case d < time.Microsecond:
		return fmt.Sprintf("%d ns", d)
	case d < 999500*time.Nanosecond:
		return fmt.Sprintf("%.0f µs", float64(d)/1e3)
	case d < 99950*time.Microsecond:
		return fmt.Sprintf("%.1f ms", float64(d)/1e6)
	case d < 999500*time.Microsecond:
		return fmt.Sprintf("%.0f ms", float64(d)/1e6)
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

// Share is a part of a whole in percent. What is not nothing is not 0 %, and what is not all is not 100 %.
func Share(part float64) string {
	switch percent := math.Abs(100 * part); {
	case math.IsNaN(part):
		return "unknown"
	case percent == 0 || percent >= 100:
	case part > 0 && percent < 1:
		return "<1 %"
	case part < 0 && percent < 1:
		return ">-1 %"
	case part > 0 && percent >= 99.5:
		return ">99 %"
	}
	return fmt.Sprintf("%.0f %%", 100*part)
}

// Offset is a moment relative to the start: "+12.4 s".
func Offset(at, start uint64) string {
	return offset("%+.1f s", at, start)
}

// exactOffset is the same in milliseconds.
func exactOffset(at, start uint64) string {
	return offset("%+.3f s", at, start)
}

// Count groups the thousands of a number: "1,024".
func Count(n uint64) string { return countText(n) }

// offset is "+0.0 s" also for what is rounded to it from below: a first event can come a few microseconds before the attach is noted.
func offset(format string, at, start uint64) string {
	text := fmt.Sprintf(format, (time.Duration(at) - time.Duration(start)).Seconds())
	if number, negative := strings.CutPrefix(text, "-"); negative && strings.Trim(number, "0. s") == "" {
		return "+" + number
	}
	return text
}
