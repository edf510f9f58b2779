// SPDX-License-Identifier: Apache-2.0

// Package size reads sizes as people write them.
package size

import (
	"errors"
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
