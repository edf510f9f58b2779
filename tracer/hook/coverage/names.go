// SPDX-License-Identifier: Apache-2.0

package main

import (
	_ "embed"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Function is a function that some version of an interface declares.
type Function struct {
	// API is the function's interface.
	API *API
	// Name is the exported name.
	Name string
	// Versions are the versions that have it, oldest first.
	Versions []string
	// Memory means that the function may be about memory, by its name or parameters.
	Memory bool

	// decision is the group, once decided.
	decided  bool
	decision *Group
}

var streamVariant = regexp.MustCompile(`_(ptsz|ptds|spt)$`)

// Base returns the name without the suffix of the variant for the other default stream.
func (f *Function) Base() string { return streamVariant.ReplaceAllString(f.Name, "") }

// Names are the functions of all interfaces, in the order of apis and then by name.
type Names []*Function

// collect merges the declarations of all versions.
func collect(all []Package, declared map[Package]map[*API][]Declaration) Names {
	var out Names
	for _, a := range apis {
		found := map[string]*Function{}
		for _, p := range all {
			for _, d := range declared[p][a] {
				f := found[d.Name]
				if f == nil {
					f = &Function{API: a, Name: d.Name}
					found[d.Name] = f
				}
				f.Memory = f.Memory || MayBeMemory(d)
				if !slices.Contains(f.Versions, p.Version) {
					f.Versions = append(f.Versions, p.Version)
				}
			}
		}
		for _, name := range slices.Sorted(maps.Keys(found)) {
			out = append(out, found[name])
		}
	}
	return out
}

// of returns the declarations of one version, according to the recorded names.
func (n Names) of(p Package) map[*API][]Declaration {
	out := map[*API][]Declaration{}
	for _, f := range n {
		if f.API.Source == p.Source && slices.Contains(f.Versions, p.Version) {
			d := Declaration{Name: f.Name}
			if f.Memory {
				d.Params = []string{recorded}
			}
			out[f.API] = append(out[f.API], d)
		}
	}
	return out
}

// recorded is a parameter that MayBeMemory takes for memory. It replaces the parameters of a recorded declaration.
const recorded = "void**"

const namesHeader = `# What the headers of headers.txt declare, and the libraries beside them export: interface, function, versions, and "memory" if
# its name or its parameters look like memory (rule.go). Made by "make coverage"; not to be edited.
`

// String returns the content of the file of names.
func (n Names) String() string {
	var out strings.Builder
	out.WriteString(namesHeader)
	all, err := packages()
	if err != nil {
		panic(err) // the embedded file: a test reads it
	}
	for _, f := range n {
		fmt.Fprintf(&out, "%s %s %s", f.API.Key, f.Name, ranges(f.Versions, f.API.versions(all)))
		if f.Memory {
			out.WriteString(" memory")
		}
		out.WriteString("\n")
	}
	return out.String()
}

// ranges shortens consecutive versions: "11.8-12.9,13.1".
func ranges(have, all []string) string {
	var out []string
	for i := 0; i < len(all); i++ {
		first := i
		for i < len(all) && slices.Contains(have, all[i]) {
			i++
		}
		switch i - first {
		case 0:
		case 1:
			out = append(out, all[first])
		default:
			out = append(out, all[first]+"-"+all[i-1])
		}
	}
	return strings.Join(out, ",")
}

// fromRanges is the inverse of ranges.
func fromRanges(text string, all []string) ([]string, error) {
	var out []string
	for part := range strings.SplitSeq(text, ",") {
		first, last, ok := strings.Cut(part, "-")
		if !ok {
			last = first
		}
		from, to := slices.Index(all, first), slices.Index(all, last)
		if from < 0 || to < from {
			return nil, fmt.Errorf("versions %q are not in headers.txt", text)
		}
		out = append(out, all[from:to+1]...)
	}
	return out, nil
}

//go:embed declared.txt
var recordedNames string

// parseNames parses the file of names.
func parseNames(text string, all []Package) (Names, error) {
	var out Names
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		at := slices.IndexFunc(apis, func(a *API) bool { return a.Key == fields[0] })
		if at < 0 || len(fields) < 3 || len(fields) > 4 {
			return nil, fmt.Errorf("line %q is not interface, function, versions and perhaps memory", strings.TrimSpace(line))
		}
		versions, err := fromRanges(fields[2], apis[at].versions(all))
		if err != nil {
			return nil, fmt.Errorf("line %q: %w", strings.TrimSpace(line), err)
		}
		out = append(out, &Function{API: apis[at], Name: fields[1], Versions: versions, Memory: len(fields) == 4})
	}
	return out, nil
}
