// SPDX-License-Identifier: Apache-2.0

package whatif

import "fmt"

// Rules are the rules of the allocator that differ by version. All others are the same from PyTorch 2.1 to 2.15.
type Rules struct {
	// OldestFirst: of free blocks of one size, that of the segment that was obtained first is taken; else that with the lowest address.
	OldestFirst bool
}

// versions are the versions of PyTorch with which rules came, the newest first. The order by segments is that of
// github.com/pytorch/pytorch/pull/183591, of May 2026; 2.6.0 was seen to go by addresses, 2.15.0 by segments.
var versions = []struct {
	major, minor int
	rules        Rules
}{
	{2, 13, Rules{OldestFirst: true}},
	{0, 0, Rules{}},
}

// RulesOf are the rules of a version, such as "2.15.0+cu132"; those of the newest where it is not known.
func RulesOf(version string) Rules {
	var major, minor int
	if _, err := fmt.Sscanf(version, "%d.%d", &major, &minor); err != nil {
		return versions[0].rules
	}
	for _, v := range versions {
		if major > v.major || major == v.major && minor >= v.minor {
			return v.rules
		}
	}
	return Rules{}
}

// other is the other rule, for versions between those that were seen.
func (r Rules) other() Rules { return Rules{OldestFirst: !r.OldestFirst} }
