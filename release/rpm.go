// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/google/rpmpack"
)

// rpmArch is what rpm calls a processor.
var rpmArch = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}

// rpm is a package of Fedora, openSUSE and their relatives.
func rpm(t target) pack {
	return pack{
		file: func(r release) string { return "gputrace-" + r.distribution() + "-1." + rpmArch[t.arch] + ".rpm" },
		build: func(r release, work string, shared []entry) ([]byte, error) {
			files, err := installed(t, work, shared)
			if err != nil {
				return nil, err
			}
			p, err := rpmpack.NewRPM(rpmpack.RPMMetaData{
				Name: "gputrace", Version: r.distribution(), Release: "1", Arch: rpmArch[t.arch], Summary: summary,
				Description: strings.ReplaceAll(description, "\n", " "), Licence: license, Compressor: "gzip:9",
				BuildTime: r.time, BuildHost: "localhost",
			})
			if err != nil {
				return nil, fmt.Errorf("begin the package: %w", err)
			}
			if err := requireGlibc(p, t); err != nil {
				return nil, fmt.Errorf("state the glibc that is needed: %w", err)
			}
			for _, f := range files {
				p.AddFile(rpmpack.RPMFile{
					Name: "/" + rpmPath(f.path), Body: f.data, Mode: uint(0o100000 | f.mode), Owner: "root", Group: "root", MTime: uint32(r.time.Unix()),
				})
			}
			p.AddCustomSig(payloadSize, rpmpack.EntryInt32([]int32{int32(cpioSize(files))}))
			var out bytes.Buffer
			if err := p.Write(&out); err != nil {
				return nil, fmt.Errorf("write the package: %w", err)
			}
			return out.Bytes(), nil
		},
	}
}

// requireGlibc states which glibc the package needs; a static program needs none.
func requireGlibc(p *rpmpack.RPM, t target) error {
	if !t.cgo {
		return nil
	}
	return p.Requires.Set(fmt.Sprintf("libc.so.6(GLIBC_2.%d)(64bit)", oldestGlibc))
}

// payloadSize is the tag of the unpacked payload's size, RPMSIGTAG_PAYLOADSIZE of rpm's rpmtag.h. The library adds up the files only;
// rpm2cpio ends with an error where it is not the size of the archive.
const payloadSize = 1007

// cpioSize is the size of an archive in cpio's "newc" format: for each file, and for one that ends it, a header of 110 bytes and the
// name with a zero byte, both together and the file padded to four bytes.
func cpioSize(files []entry) int {
	pad := func(n int) int { return (n + 3) &^ 3 }
	n := pad(110 + len("TRAILER!!!") + 1)
	for _, f := range files {
		n += pad(110+len("/"+rpmPath(f.path))+1) + pad(len(f.data))
	}
	return n
}

// rpmPath is where these distributions have a file that Debian has elsewhere.
func rpmPath(name string) string {
	return strings.Replace(name, "zsh/vendor-completions", "zsh/site-functions", 1)
}
