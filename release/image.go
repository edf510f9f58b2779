// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"

	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// image is an OCI image of the static programs, from nothing: podman load, docker load (25 and later), skopeo copy oci-archive.
func image(programs ...target) pack {
	return pack{
		file: func(r release) string { return "gputrace_" + r.version + "_oci.tar" },
		build: func(r release, work string, shared []entry) ([]byte, error) {
			l := layout{r: r}
			index := v1.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex}
			for _, t := range programs {
				m, err := l.manifest(t, work, shared)
				if err != nil {
					return nil, err
				}
				index.Manifests = append(index.Manifests, m)
			}
			all := l.add(v1.MediaTypeImageIndex, encode(index))
			all.Annotations = map[string]string{v1.AnnotationRefName: r.version}
			top := v1.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex, Manifests: []v1.Descriptor{all}}
			l.files = append(l.files, entry{v1.ImageIndexFile, 0o644, encode(top)},
				entry{v1.ImageLayoutFile, 0o644, encode(v1.ImageLayout{Version: v1.ImageLayoutVersion})})
			return writeTar(l.files, r, false)
		},
	}
}

// layout collects the files of an image: blobs, each named by its digest.
type layout struct {
	r     release
	files []entry
}

func (l *layout) add(kind string, b []byte) v1.Descriptor {
	sum := fmt.Sprintf("%x", sha256.Sum256(b))
	l.files = append(l.files, entry{"blobs/sha256/" + sum, 0o644, b})
	return v1.Descriptor{MediaType: kind, Digest: digest.NewDigestFromEncoded(digest.SHA256, sum), Size: int64(len(b))}
}

// manifest adds the image of one platform.
func (l *layout) manifest(t target, work string, shared []entry) (v1.Descriptor, error) {
	p, err := program(t, work, "usr/bin/gputrace")
	if err != nil {
		return v1.Descriptor{}, err
	}
	files := []entry{p}
	for _, f := range shared {
		if len(f.path) > len(documents) && f.path[:len(documents)] == documents {
			files = append(files, f)
		}
	}
	// The program keeps unwind tables in /var/cache/gputrace, and writes results into the working folder.
	files = append(files, entry{"var/cache/gputrace/.keep", 0o644, nil}, entry{"work/.keep", 0o644, nil}, entry{"tmp/.keep", 0o644, nil})
	b, err := writeTar(files, l.r, true)
	if err != nil {
		return v1.Descriptor{}, err
	}
	layer := l.add(v1.MediaTypeImageLayerGzip, compress(b))
	platform := v1.Platform{OS: t.os, Architecture: t.arch}
	config := l.add(v1.MediaTypeImageConfig, encode(v1.Image{
		Created: &l.r.time, Platform: platform,
		Config: v1.ImageConfig{
			Entrypoint: []string{"/usr/bin/gputrace"}, WorkingDir: "/work",
			Labels: map[string]string{
				v1.AnnotationTitle: "gputrace", v1.AnnotationDescription: summary, v1.AnnotationVersion: l.r.version,
				v1.AnnotationRevision: l.r.commit, v1.AnnotationLicenses: license,
			},
		},
		RootFS: v1.RootFS{Type: "layers", DiffIDs: []digest.Digest{digest.FromBytes(b)}},
	}))
	m := l.add(v1.MediaTypeImageManifest, encode(v1.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest, Config: config, Layers: []v1.Descriptor{layer},
	}))
	m.Platform = &platform
	return m, nil
}

// encode writes JSON. The types of the specification can always be encoded.
func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}
