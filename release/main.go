// SPDX-License-Identifier: Apache-2.0

// Command release builds gputrace for all platforms and packs it: archives, .deb, .rpm, Python wheels, an OCI image, and their
// checksums. It needs Go, a C compiler and the modules in Go's cache, no network. Two runs from one commit give the same bytes: every
// file in every package has the time of the commit and the owner root, and lists are sorted.
//
//	go run . -source .. -out ../dist
//
// It is a module of its own, so that importers of gputrace do not resolve what it needs.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("release: ")
	var o options
	flag.StringVar(&o.source, "source", "..", "the checkout of gputrace")
	flag.StringVar(&o.out, "out", "dist", "folder to write into; what it holds is replaced")
	flag.StringVar(&o.version, "version", "", "the version, without v (default: the tag of the commit, else one made of its time and hash)")
	flag.StringVar(&o.only, "only", "", "build only the package for this machine: `KIND` is wheel")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, o); err != nil {
		log.Fatal(err)
	}
}

// options are those of the command line.
type options struct {
	source  string
	out     string
	version string
	only    string // empty: all
}

// run builds and packs everything.
func run(ctx context.Context, o options) error {
	r, err := identify(ctx, o.source, o.version)
	if err != nil {
		return fmt.Errorf("identify the commit of %s: %w", o.source, err)
	}
	work, err := os.MkdirTemp("", "gputrace-release-")
	if err != nil {
		return fmt.Errorf("make a folder to build in: %w", err)
	}
	defer os.RemoveAll(work)
	if o.only == "" {
		if err := os.RemoveAll(o.out); err != nil {
			return fmt.Errorf("clear the output: %w", err)
		}
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return fmt.Errorf("make the output: %w", err)
	}
	wanted, packs := targets, packages()
	if o.only != "" {
		if wanted, packs, err = onlyHere(o.only); err != nil {
			return err
		}
	}
	for i := range wanted {
		if err := wanted[i].build(ctx, o.source, work, r); err != nil {
			return fmt.Errorf("build %s: %w", wanted[i].name(), err)
		}
	}
	shared, err := sharedFiles(ctx, o.source, work)
	if err != nil {
		return fmt.Errorf("collect the files of all packages: %w", err)
	}
	for _, p := range packs {
		if err := p.write(filepath.Join(o.out, p.file(r)), r, work, shared); err != nil {
			return fmt.Errorf("write %s: %w", p.file(r), err)
		}
		log.Print(filepath.Join(o.out, p.file(r)))
	}
	if o.only != "" {
		return nil
	}
	return writeSums(o.out)
}

// onlyHere is what one kind of package for this machine needs: the programs, of which the static one prints the
// manual page, and the package.
func onlyHere(kind string) ([]target, []pack, error) {
	if kind != "wheel" {
		return nil, nil, fmt.Errorf("-only %s: want wheel", kind)
	}
	own, err := ownTarget()
	if err != nil {
		return nil, nil, err
	}
	if own == static {
		return []target{tracer, static}, []pack{wheel(tracer)}, nil
	}
	return []target{own}, []pack{wheel(own)}, nil
}
