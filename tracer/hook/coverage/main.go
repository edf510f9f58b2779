// SPDX-License-Identifier: Apache-2.0

// Command coverage writes docs/measured/coverage.md, which lists for every memory function that GPU interfaces declare whether
// it is traced, and why not. It fails if a header declares a function that is missing in its table (table.go).
//
//	go run ./tracer/hook/coverage                 the page, from the names that are recorded in declared.txt
//	go run ./tracer/hook/coverage -headers DIR    the names too, from the packages that .ci/headers put into DIR
//
// With -root, both files are written to another folder, to compare them with the repository's.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log"
	"os"
	"path/filepath"
)

// The generated files, relative to the root.
const (
	namesFile = "tracer/hook/coverage/declared.txt"
	pageFile  = "docs/measured/coverage.md"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("coverage: ")
	headers := flag.String("headers", "", "folder with the packages of headers.txt; empty: take the names that are recorded")
	root := flag.String("root", ".", "folder to write into")
	flag.Parse()
	if err := run(*headers, *root); err != nil {
		log.Fatal(err)
	}
}

func run(headers, root string) error {
	all, err := packages()
	if err != nil {
		return err
	}
	names, err := load(all, headers)
	if err != nil {
		return err
	}
	if headers != "" {
		if err := write(root, namesFile, names.String()); err != nil {
			return err
		}
	}
	if err := write(root, pageFile, page(names, all)); err != nil {
		return err
	}
	problems := check(names)
	for _, p := range problems {
		log.Print(p)
	}
	if len(problems) > 0 {
		return fmt.Errorf("%d functions are not decided", len(problems))
	}
	return nil
}

// load reads the recorded names, or those of the packages in a folder.
func load(all []Package, headers string) (Names, error) {
	if headers == "" {
		return parseNames(recordedNames, all)
	}
	declared := map[Package]map[*API][]Declaration{}
	for _, p := range all {
		file, err := p.find(headers)
		switch {
		case err == nil:
			declared[p], err = p.declared(file)
		case errors.Is(err, fs.ErrNotExist) && p.From != "pypi":
			declared[p], err = fromRecord(p, all)
		}
		if err != nil {
			return nil, err
		}
	}
	return collect(all, declared), nil
}

// fromRecord replaces a package that is no longer available: a suite of Debian has only one version at a time.
func fromRecord(p Package, all []Package) (map[*API][]Declaration, error) {
	recorded, err := parseNames(recordedNames, all)
	if err != nil {
		return nil, err
	}
	out := recorded.of(p)
	if len(out) == 0 {
		return nil, fmt.Errorf("%s %s of %s cannot be fetched, and its names are not recorded", p.Name, p.Release, p.From)
	}
	log.Printf("%s %s of %s is not there: its names are those that were recorded", p.Name, p.Release, p.From)
	return out, nil
}

func write(root, name, text string) error {
	file := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(text), 0o644)
}
