// SPDX-License-Identifier: Apache-2.0

package symbolize

import (
	"hash/crc32"
	"os"
	"path"

	"github.com/gputrace/gputrace/internal/elfimage"
)

const (
	debugRoot = "/usr/lib/debug" // where distributions put separate debug files (GDB manual, "Separate Debug Files")

	// maxLinked bounds a file whose checksum is taken, bytes.
	maxLinked = 4 << 30
)

// debugCandidate is where a separate debug file may be, and what tells that it is the one.
type debugCandidate struct {
	path    string
	matches func(d *File) bool
}

// findDebug looks for the separate debug file: by build-id, then by .gnu_debuglink.
func (f *File) findDebug() *File {
	candidates := f.debugCandidates()
	for _, open := range f.openDebug {
		for _, c := range candidates {
			if d := openDebug(open, c.path); d != nil {
				if d.Machine() == f.Machine() && c.matches(d) {
					f.adopt(d)
					return d
				}
				d.Close()
			}
		}
	}
	return nil
}

// debugCandidates lists the places in GDB's order.
func (f *File) debugCandidates() (list []debugCandidate) {
	defer elfimage.OnFault(func(error) { list = nil })()
	if id := f.BuildID(); len(id) > 2 {
		list = append(list, debugCandidate{
			debugRoot + "/.build-id/" + id[:2] + "/" + id[2:] + ".debug", func(d *File) bool { return d.noteID() == id },
		})
	}
	name, sum, ok := f.debugLink()
	if !ok {
		return list
	}
	dir := path.Dir(f.Path)
	for _, p := range []string{dir + "/" + name, dir + "/.debug/" + name, debugRoot + dir + "/" + name} {
		if p != f.Path {
			list = append(list, debugCandidate{p, func(d *File) bool { return d.hasChecksum(sum) }})
		}
	}
	return list
}

// debugLink reads .gnu_debuglink: the name of a file, NUL and padding to 4 bytes, its CRC-32. A name with a slash is none:
// it could lead anywhere.
func (f *File) debugLink() (name string, sum uint32, ok bool) {
	s := f.Section(".gnu_debuglink")
	if s == nil {
		return "", 0, false
	}
	r := elfimage.Reader{B: s.Data}
	name = string(r.CString())
	r.Take(-uint64(r.Off) & 3)
	sum = r.U32()
	return name, sum, !r.Bad && path.Base(name) == name && name != "." && name != ".." && len(name) <= maxLinkName
}

// openDebug opens a candidate; nil when there is none, or no ELF file.
func openDebug(open func(string) (*os.File, error), path string) *File {
	file, err := open(path)
	if err != nil {
		return nil
	}
	defer file.Close()
	d, err := Open(file, path)
	if err != nil {
		return nil
	}
	return d
}

// maxLinkName is the length of the longest name of a debug file that is believed, bytes.
const maxLinkName = 256

// noteID is the build-id by the sections: the segments of a debug file are not where its program headers say.
func (f *File) noteID() (id string) {
	defer elfimage.OnFault(func(error) { id = "" })()
	if s := f.Section(".note.gnu.build-id"); s != nil {
		return elfimage.BuildIDNote(s.Data, 4)
	}
	return ""
}

// hasChecksum compares the CRC-32 of the whole file.
func (f *File) hasChecksum(sum uint32) (same bool) {
	defer elfimage.OnFault(func(error) { same = false })()
	return f.Size <= maxLinked && crc32.ChecksumIEEE(f.Data) == sum
}
