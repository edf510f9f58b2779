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
			minor, err := glibc(t.path(work))
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
			if err := p.Requires.Set(fmt.Sprintf("libc.so.6(GLIBC_2.%d)(64bit)", minor)); err != nil {
				return nil, fmt.Errorf("state the glibc that is needed: %w", err)
			}
			for _, f := range files {
				p.AddFile(rpmpack.RPMFile{
					Name: "/" + rpmPath(f.path), Body: f.data, Mode: uint(0o100000 | f.mode), Owner: "root", Group: "root", MTime: uint32(r.time.Unix()),
				})
			}
			var out bytes.Buffer
			if err := p.Write(&out); err != nil {
				return nil, fmt.Errorf("write the package: %w", err)
			}
			return out.Bytes(), nil
		},
	}
}

// rpmPath is where these distributions have a file that Debian has elsewhere.
func rpmPath(name string) string {
	return strings.Replace(name, "zsh/vendor-completions", "zsh/site-functions", 1)
}
