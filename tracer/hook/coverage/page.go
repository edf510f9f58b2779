// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/tracer/hook"
)

const pageIntro = `# Which memory functions are traced

As of 28 November 2026, by ` + "`make coverage`" + `.

Every function that CUDA, HIP and Level Zero declare was looked at, in each version named below. One that gives or takes memory
is hooked, or there is a reason why it is not. This page is made, by ` + "`make coverage`" + `, from three things: the names in the
headers, the table in ` + "`tracer/hook/coverage/table.go`" + `, and the rows of ` + "`tracer/hook`" + `. Continuous integration fetches the
headers and fails when one declares a function that the table does not know.

| status | meaning |
|---|---|
| hooked | a call is an event, or tells in which context a thread allocates from then on |
| not hooked | memory is involved; what is known of it instead is said |
| not memory | the name or a parameter looks like memory, and the function gives and takes none |

- Names are those that the libraries export, after the headers' #defines: a program that calls ` + "`cuMemAlloc`" + ` calls
  ` + "`cuMemAlloc_v2`" + `.
- ` + "`_ptsz`" + `, ` + "`_ptds`" + ` and ` + "`_spt`" + ` are second copies of a function, for programs whose default stream is each thread's own. They are
  counted, meant with every name, and hooked with it.
- Where no version is named, every version has the function.
- The last column of the hooked ones is the event: what happens, in which layer, and to what, if that is not known by an
  address. Layers: device memory, pinned host memory, memory that somebody else owns (shared), addresses without memory of
  their own (virtual), and what holds memory and is none (holder).

What no call asks for is not here: the memory of a context itself, code, the heap of ` + "`malloc`" + ` in kernels, what a driver keeps
for its own use. It is in the part of the balance that the driver reports and no call explains. Nor are calls that go past the
libraries named here: to ROCr below HIP, or to Intel's driver without its loader.

`

// page returns docs/measured/coverage.md.
func page(names Names, all []Package) string {
	var out strings.Builder
	out.WriteString(pageIntro)
	out.WriteString("| interface | versions | declared | hooked | not hooked | not memory | nothing of memory " +
		"|\n|---|---|--:|--:|--:|--:|--:|\n")
	for _, a := range apis {
		count := map[Status]int{}
		for _, f := range names.in(a) {
			count[f.status()]++
		}
		fmt.Fprintf(&out, "| %s | %s | %d | %d | %d | %d | %d |\n", a.Title, a.versionNames(all), len(names.in(a)),
			count[Hooked], count[NotHooked], count[NotMemory], count[Other])
	}
	for _, a := range apis {
		fmt.Fprintf(&out, "\n## %s\n", a.Title)
		hookedPart(&out, names.in(a), all)
		part(&out, "Not hooked", NotHooked, names.in(a), all)
		part(&out, "Not memory", NotMemory, names.in(a), all)
		otherPart(&out, names.in(a))
	}
	return out.String()
}

func (n Names) in(a *API) Names {
	var out Names
	for _, f := range n {
		if f.API == a {
			out = append(out, f)
		}
	}
	return out
}

// status returns the status of the function's group, or Hooked if package hook has a row for it.
func (f *Function) status() Status {
	g := f.group()
	switch {
	case len(f.rows()) > 0:
		return Hooked
	case g == nil:
		return 0
	case g.Status == Hooked:
		return NotHooked
	default:
		return g.Status
	}
}

// versionNames lists an interface's versions with the packages that have them.
func (a *API) versionNames(all []Package) string {
	var out []string
	for _, p := range all {
		if p.Source == a.Source {
			release, _, _ := strings.Cut(p.Release, "-")
			out = append(out, release)
		}
	}
	return strings.Join(out, ", ")
}

func hookedPart(out *strings.Builder, names Names, all []Package) {
	out.WriteString("\n### Hooked\n\n| family | function | versions | event |\n|---|---|---|---|\n")
	for _, family := range families {
		heading := family
		for _, f := range names {
			g := f.group()
			if f.status() == Hooked && f.Base() == f.Name && g != nil && g.Family == family {
				fmt.Fprintf(out, "| %s | `%s`%s | %s | %s |\n", heading, f.Name, variants(names, f), f.inVersions(all), meaning(f.rows()))
				heading = ""
			}
		}
	}
}

// variants lists the suffixes under which a function is exported again.
func variants(names Names, f *Function) string {
	var out string
	for _, v := range names {
		if v != f && v.Base() == f.Name {
			out += ", `" + strings.TrimPrefix(v.Name, f.Name) + "`"
		}
	}
	return out
}

// inVersions returns the versions that have a function; empty when all have it.
func (f *Function) inVersions(all []Package) string {
	versions := f.API.versions(all)
	first, last := f.Versions[0], f.Versions[len(f.Versions)-1]
	switch {
	case len(f.Versions) == len(versions):
		return ""
	case len(f.Versions) != slices.Index(versions, last)-slices.Index(versions, first)+1:
		return ranges(f.Versions, versions)
	case last == versions[len(versions)-1]:
		return "since " + first
	case first == versions[0]:
		return "to " + last
	default:
		return first + " to " + last
	}
}

// meaning describes how a call is handled.
func meaning(rows []hook.Row) string {
	var out []string
	for _, r := range rows {
		text := "chooses the device"
		switch {
		case r.Program == hook.SetContext:
			text = "chooses the context"
		case r.Program == hook.SetDevice:
		case r.Object == event.ObjectMemory:
			text = fmt.Sprintf("%s, %s", r.Kind, r.Layer)
		default:
			text = fmt.Sprintf("%s, %s (%s)", r.Kind, r.Layer, r.Object)
		}
		if !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	return strings.Join(out, "; ")
}

// part writes a table of reasons, each with its functions.
func part(out *strings.Builder, title string, status Status, names Names, all []Package) {
	fmt.Fprintf(out, "\n### %s\n\n| family | functions | why |\n|---|---|---|\n", title)
	for _, family := range families {
		heading := family
		for i := range groups {
			g := &groups[i]
			if g.Family != family {
				continue
			}
			var list []string
			for _, f := range names {
				if f.group() == g && f.status() == status && f.Base() == f.Name {
					list = append(list, f.listed(all))
				}
			}
			if len(list) > 0 {
				fmt.Fprintf(out, "| %s | %s | %s |\n", heading, strings.Join(list, ", "), g.why())
				heading = ""
			}
		}
	}
}

func (g *Group) why() string {
	if g.Status == Hooked {
		return "it is to be, and has no row yet"
	}
	return g.Reason
}

// listed returns the name with its versions.
func (f *Function) listed(all []Package) string {
	if r := f.inVersions(all); r != "" {
		return fmt.Sprintf("`%s` (%s)", f.Name, r)
	}
	return "`" + f.Name + "`"
}

// otherPart writes counts of the functions that are not about memory, by the patterns of the table.
func otherPart(out *strings.Builder, names Names) {
	out.WriteString("\n### Nothing of memory in name or parameters\n\n| functions | number | about |\n|---|--:|---|\n")
	for i := range groups {
		g, n := &groups[i], 0
		for _, f := range names {
			if f.group() == g && f.status() == Other {
				n++
			}
		}
		if g.Status == Other && n > 0 {
			fmt.Fprintf(out, "| `%s` | %d | %s |\n", strings.Join(strings.Fields(names[0].API.Names(g)), "` `"), n, g.Reason)
		}
	}
}
