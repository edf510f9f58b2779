// SPDX-License-Identifier: Apache-2.0

// Pyroscope speaks Pyroscope's push API by the generated code of its own module, and writes what it receives to files.
// pyroscope ADDRESS DIR writes each request as DIR/N.json.
package main

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	pushv1 "github.com/grafana/pyroscope/api/gen/proto/go/push/v1"
	"github.com/grafana/pyroscope/api/gen/proto/go/push/v1/pushv1connect"
	"google.golang.org/protobuf/encoding/protojson"
)

// server writes the requests into a folder.
type server struct {
	dir string
	n   atomic.Int64
}

// Push implements pushv1connect.PusherServiceHandler.
func (s *server) Push(_ context.Context, r *connect.Request[pushv1.PushRequest]) (*connect.Response[pushv1.PushResponse], error) {
	b, err := protojson.Marshal(r.Msg)
	if err != nil {
		return nil, err
	}
	name := filepath.Join(s.dir, fmt.Sprintf("%d.json", s.n.Add(1)))
	if err := os.WriteFile(name+".part", b, 0o644); err != nil {
		return nil, err
	}
	return connect.NewResponse(&pushv1.PushResponse{}), os.Rename(name+".part", name)
}

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: pyroscope ADDRESS DIR")
	}
	path, handler := pushv1connect.NewPusherServiceHandler(&server{dir: os.Args[2]})
	m := http.NewServeMux()
	m.Handle(path, handler)
	log.Fatal((&http.Server{Addr: os.Args[1], Handler: m, ReadHeaderTimeout: 10 * time.Second}).ListenAndServe())
}
