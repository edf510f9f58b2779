// SPDX-License-Identifier: Apache-2.0

// Package size reads and writes sizes as people do.
package size

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// written is a number with an optional binary unit. KB and MB are refused: they are powers of ten in some programs.
var written = regexp.MustCompile(`^(\d+|\d*\.\d+)\s*(?:(?i:([kmgt])(?:ib?)?|b))?$`)

// Parse reads bytes, below 1<<63: 65536, 64KiB, 1.5 g. Fractions of a byte are cut.
func Parse(text string) (uint64, error) {
	m := written.FindStringSubmatch(strings.TrimSpace(text))
	if m == nil {
		return 0, errors.New("not a size, such as 65536, 64KiB or 1.5GiB")
	}
	shift := 0
	if m[2] != "" {
		shift = 10 * (1 + strings.Index("kmgt", strings.ToLower(m[2])))
	}
	if n, err := strconv.ParseUint(m[1], 10, 63-shift); err == nil {
		return n << shift, nil
	}
	f, err := strconv.ParseFloat(m[1], 64)
	if f *= float64(uint64(1) << shift); err != nil || f >= 1<<63 {
		return 0, errors.New("not a size below 8388608TiB")
	}
	return uint64(f), nil
}

var units = []string{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}

// Text returns bytes with one decimal in the smallest binary unit that leaves three digits before it: "999.9 MiB", "1.0 GiB" for
// 1,014 MiB; "unknown" for the largest number, which is event.Unknown.
func Text(n uint64) string {
	if n == math.MaxUint64 {
		return "unknown"
	}
	if n < 1024 {
		return strconv.FormatUint(n, 10) + " B"
	}
	v, unit := float64(n)/1024, 0
	for v >= 999.95 { // would be printed as 1000.0
		v, unit = v/1024, unit+1
	}
	return fmt.Sprintf("%.1f %s", v, units[unit])
}
