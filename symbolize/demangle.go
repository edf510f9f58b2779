// SPDX-License-Identifier: Apache-2.0

package symbolize

import "github.com/ianlancetaylor/demangle"

const (
	maxMangled      = 64 << 10 // bytes; the longest name in PyTorch 2.15's libraries has 4,614
	maxDemangledLog = 12       // log2 of the bytes after which a demangled name is cut
)

// Demangle turns a C++ or Rust symbol into what people read: without parameters, template arguments and clone suffixes.
// A name that is not mangled, or that is too long, is returned as it is. It costs microseconds: cache the result.
func Demangle(name string) string {
	if len(name) > maxMangled {
		return name
	}
	s := demangle.Filter(name, demangle.NoParams, demangle.NoTemplateParams, demangle.NoEnclosingParams,
		demangle.NoClones, demangle.MaxLength(maxDemangledLog))
	if s == "" {
		return name // "_RC_" is the name of nothing
	}
	return s
}
