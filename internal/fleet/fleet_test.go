package fleet_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"ration/check/expect"
	"ration/check/fleet/sim"
	"ration/internal/fleet"
)

// follow follows machines. The folder has the files token and ca.pem.
func follow(t *testing.T, folder string, machines ...string) *fleet.Fleet {
	t.Helper()
	list, err := fleet.NewList(machines)
	expect.OK(t, err)
	f, err := fleet.New(fleet.Options{List: list, Token: filepath.Join(folder, "token"), CA: filepath.Join(folder, "ca.pem")})
	expect.OK(t, err)
	f.SetTimes(time.Minute, time.Hour) // each machine is tried once
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	t.Cleanup(func() { cancel(); <-ended })
	go func() { f.Run(ctx); close(ended) }()
	return f
}

// await waits until a machine is in a state, and returns it.
func await(t *testing.T, f *fleet.Fleet, name, state string) *fleet.Machine {
	t.Helper()
	late := time.After(time.Minute)
	for {
		all, next := f.Latest()
		for _, m := range all.Machines {
			if m.Name == name && m.State == state {
				return m
			}
		}
		select {
		case <-next:
		case <-late:
			expect.Must(t, false, name, "is not", state, all.Machines)
		}
	}
}

// made starts made-up machines, and returns the folder with the files for them.
func made(t *testing.T, count int) (*sim.Sim, string) {
	t.Helper()
	s, err := sim.Start(t.Context(), count)
	expect.OK(t, err)
	folder := t.TempDir()
	_, err = s.Files(folder)
	expect.OK(t, err)
	return s, folder
}

// The machines are read over the stream that ration web serves: what each user holds of each GPU.
func TestMachinesAreRead(t *testing.T) {
	s, folder := made(t, 20)
	f := follow(t, folder, "@"+filepath.Join(folder, "list"))
	for n := range 20 {
		m := await(t, f, s.Address(n)+":"+s.Port, fleet.Up)
		var used uint64
		for _, g := range m.GPUs {
			var held uint64
			for _, u := range g.Users {
				held += u.Used
			}
			used += held
			expect.True(t, g.Total == 140<<30 && len(g.Users) > 0 && g.Used >= held, g)
		}
		var all uint64
		for _, u := range m.Users {
			all += u.Used
		}
		expect.True(t, len(m.GPUs) == 8 && used > 0 && used == all && m.Version == "0.0.0" && m.Jobs > 5, m)
		expect.True(t, (n == 17) == (len(m.Problems) == 1 && m.Problems[0].Kind == "over-limit"), n, m.Problems)
	}
}

// A limit of nothing puts no user on a GPU.
func TestUserOfOneGPU(t *testing.T) {
	s, folder := made(t, 1)
	address := serveTLS(t, s.Authority, "127.0.0.1", says(`{"devices":[{"device":0,"uuid":"a","total":100},{"device":1,"uuid":"b","total":100}],"serials":[1],"jobs":[{"owner":"ada","devices":[`+
		`{"device":0,"uuid":"a","limited":true,"limit":5},{"device":1,"uuid":"b","limited":true}]}]}`+"\n"))
	f := follow(t, folder, address)
	m := await(t, f, address, fleet.Up)
	expect.True(t, len(m.GPUs) == 2 && len(m.GPUs[0].Users) == 1 && len(m.GPUs[1].Users) == 0 && m.Users[0].Limit == 5, m.GPUs, m.Users)
}

// A name that DNS does not know, and one that it does not answer for, are said in words.
func TestUnknownNames(t *testing.T) {
	for want, err := range map[string]*net.DNSError{
		"no such host (is the name right?)": {Err: "no such host", Name: "node1", Server: "192.0.2.1:53", IsNotFound: true},
		"DNS does not answer for this name": {Err: "i/o timeout", Name: "node1", Server: "192.0.2.1:53", IsTimeout: true, UnwrapErr: syscall.ECONNREFUSED},
	} {
		expect.Equal(t, fleet.Reason(&url.Error{Op: "Get", URL: "https://node1:9411/v1/watch", Err: &net.OpError{Op: "dial", Net: "tcp", Err: err}}), want)
		l, parsed := fleet.NewList([]string{"dns+node1"})
		expect.OK(t, parsed)
		l.SetDNS(func(string) ([]netip.Addr, error) { return nil, err }, nil)
		_, problems := l.Targets(t.Context())
		expect.True(t, len(problems) == 1 && problems[0].Error() == "asking DNS for the machines of dns+node1: "+want, problems)
	}
}

// A machine that goes away is unreachable, with what it said last.
func TestGoesAway(t *testing.T) {
	s, folder := made(t, 1)
	lost := make(chan struct{})
	address := serveTLS(t, s.Authority, "127.0.0.1", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, `{"devices":[{"device":0,"uuid":"a","total":100,"used":7}],"serials":[],"jobs":[]}`)
		_ = http.NewResponseController(w).Flush()
		<-lost
	})
	f := follow(t, folder, address)
	m := await(t, f, address, fleet.Up)
	expect.True(t, m.Reason == "" && m.GPUs[0].Used == 7, m)
	close(lost)
	gone := await(t, f, address, fleet.Unreachable)
	expect.True(t, gone.Reason == "it has closed the connection" && gone.GPUs[0].Used == 7 && !gone.Since.Before(m.Since) && gone.Seen.Equal(m.Seen), gone)
}

// serveTLS serves a handler with a certificate of a name, and returns its address.
func serveTLS(t *testing.T, by *sim.Authority, name string, h http.HandlerFunc) string {
	t.Helper()
	cert, err := by.Certificate(name, time.Now().Add(time.Hour))
	expect.OK(t, err)
	return serveWith(t, cert, h)
}

func serveWith(t *testing.T, cert *tls.Certificate, h http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewUnstartedServer(h)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{*cert}}
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	return server.Listener.Addr().String()
}

// says answers with a text, and keeps the connection.
func says(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, text)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
}

// raw answers with a text in place of HTTP.
func raw(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		_, _ = io.WriteString(c, text)
		_ = c.Close()
	}
}

// A machine that sends what it must not is unreachable, with a reason that is not its own text. No other machine
// notices.
func TestLiars(t *testing.T) {
	s, folder := made(t, 1)
	other, err := sim.NewAuthority()
	expect.OK(t, err)
	expired, err := s.Authority.Certificate("127.0.0.1", time.Now().Add(-time.Minute))
	expect.OK(t, err)
	var sent atomic.Int64  // bytes of an endless line
	var asked atomic.Int64 // requests to the machine that another one names
	victim := serveTLS(t, s.Authority, "127.0.0.1", func(http.ResponseWriter, *http.Request) { asked.Add(1) })
	var packed bytes.Buffer
	zip := gzip.NewWriter(&packed)
	_, err = zip.Write(bytes.Repeat([]byte(" "), 64<<20))
	expect.OK(t, err)
	expect.OK(t, zip.Close())
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { http.Error(w, "<b>evil</b>", code) }
	}
	serve := func(h http.HandlerFunc) string { return serveTLS(t, s.Authority, "127.0.0.1", h) }
	plain := httptest.NewServer(says(""))
	t.Cleanup(func() { plain.CloseClientConnections(); plain.Close() })
	long := strings.Repeat("x", 200)
	cases := []struct{ address, reason string }{
		{serve(func(w http.ResponseWriter, r *http.Request) { // endless
			for r.Context().Err() == nil {
				n, err := w.Write(bytes.Repeat([]byte("["), 1<<16))
				if sent.Add(int64(n)); err != nil {
					return
				}
			}
		}), "a line of more than 1 MiB"},
		{serve(says("<script>\n")), "what it sends is not the JSON of a machine"},
		{serve(says(strings.Repeat("[", 20000) + "\n")), "what it sends is not the JSON of a machine"},
		{serve(says(`{"devices":[` + strings.Repeat("{},", 70) + "{}]}\n")), "it says that it has 71 GPUs"},
		{serve(says(`{"serials":[` + strings.Repeat("1,", 5000) + "1]}\n")), "5001 jobs"},
		{serve(says(`{"serials":[1,2],"jobs":[{}]}` + "\n")), "it contradicts itself"},
		{serve(says(`{"serials":[1],"jobs":[{},{}]}` + "\n")), "it contradicts itself"},
		{serve(says(`{"devices":[{"total":18446744073709551615}]}` + "\n")), "it says that GPU 0 has"},
		{serve(says(`{"serials":[1],"jobs":[{"devices":[{"uuid":"` + long + `"}]}]}` + "\n")), "it sends a UUID of 200 bytes"},
		{serve(says(`{"serials":[1],"jobs":[{"devices":[` + strings.Repeat("{},", 17000) + `{}]}]}` + "\n")), "its jobs have more than 16384 GPUs"},
		{serve(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(packed.Bytes())
		}), "it "},
		{serve(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://"+victim+"/", http.StatusTemporaryRedirect)
		}), "it redirects to another address (status 307)"},
		{serve(raw("HTTP/1.1 200 call evil\r\nevil: \x1b\r\n\r\n")), "what it answers is not HTTP"},
		{serve(raw("HTTP/1.1 200 ok\r\nContent-Length: evil\r\n\r\n")), "what it answers is not HTTP"},
		{serve(raw("evil\r\n\r\n")), "what it answers is not HTTP"},
		{serve(status(http.StatusUnauthorized)), "it refuses the token"},
		{serve(status(http.StatusForbidden)), "it refuses the token"},
		{serve(status(http.StatusNotFound)), "it has no /v1/watch"},
		{serve(status(http.StatusInternalServerError)), "it answers with status 500"},
		{serveTLS(t, s.Authority, "127.0.0.2", says("{}\n")), "its certificate is of another name than 127.0.0.1"},
		{serveTLS(t, other, "127.0.0.1", says("{}\n")), "its certificate is of an unknown authority"},
		{serveWith(t, expired, says("{}\n")), "its certificate has expired"},
		{plain.Listener.Addr().String(), "it answers without encryption"},
	}
	honest := s.Address(0) + ":" + s.Port
	machines := []string{honest}
	for _, c := range cases {
		machines = append(machines, c.address)
	}
	f := follow(t, folder, machines...)
	for _, c := range cases {
		m := await(t, f, c.address, fleet.Unreachable)
		expect.True(t, strings.HasPrefix(m.Reason, c.reason) || strings.Contains(m.Reason, c.reason), m.Reason, "and not", c.reason)
		expect.True(t, !strings.Contains(m.Reason, "evil") && !strings.Contains(m.Reason, "<") && len(m.Reason) < 220, m.Reason)
	}
	await(t, f, honest, fleet.Up)
	expect.Equal(t, asked.Load(), 0, "a redirection was followed")
	expect.True(t, sent.Load() < 32<<20, "of an endless line,", sent.Load(), "bytes were taken") // buffers of the kernel
}

// A machine is silent if no whole line arrives in time, even if bytes do.
func TestTrickle(t *testing.T) {
	s, folder := made(t, 1)
	address := serveTLS(t, s.Authority, "127.0.0.1", func(w http.ResponseWriter, r *http.Request) {
		for every := time.NewTicker(time.Millisecond); r.Context().Err() == nil; <-every.C {
			if _, err := io.WriteString(w, " "); err != nil || http.NewResponseController(w).Flush() != nil {
				return
			}
		}
	})
	list, err := fleet.NewList([]string{address})
	expect.OK(t, err)
	f, err := fleet.New(fleet.Options{List: list, Token: filepath.Join(folder, "token"), CA: filepath.Join(folder, "ca.pem")})
	expect.OK(t, err)
	f.SetTimes(100*time.Millisecond, time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { f.Run(ctx); close(ended) }()
	m := await(t, f, address, fleet.Unreachable)
	cancel()
	<-ended
	expect.Equal(t, m.Reason, "it does not answer")
}

// However fast a machine sends lines, few are read: as many as a budget of bytes allows.
func TestFlood(t *testing.T) {
	s, folder := made(t, 1)
	address := serveTLS(t, s.Authority, "127.0.0.1", func(w http.ResponseWriter, r *http.Request) {
		for n := 1; ; n++ {
			if _, err := fmt.Fprintf(w, "{\"devices\":[{\"device\":%d}]}\n\n", n); err != nil {
				return
			}
		}
	})
	begun := time.Now()
	f := follow(t, folder, address)
	for read := 0; read < 36; { // the budget at first is 64 lines, of which half are empty
		all, next := f.Latest()
		for _, m := range all.Machines {
			expect.Must(t, m.State != fleet.Unreachable, m.Reason)
			if m.State == fleet.Up {
				read = m.GPUs[0].Device
			}
		}
		if read < 36 {
			<-next
		}
	}
	expect.True(t, time.Since(begun) > 1500*time.Millisecond, "36 lines were read after", time.Since(begun))
}

// What a machine says of names, sizes and users is bounded before it is kept, and its own name is the operator's.
func TestClaims(t *testing.T) {
	s, folder := made(t, 1)
	var text strings.Builder
	text.WriteString(`{"machine":"other","url":"https://other/","state":"up","devices":[{"device":0,"uuid":"a","name":"` + strings.Repeat("é", 500) + "\\u001b[2J" + `","total":1000,"used":5000,"rations":18446744073709551615}],"jobs":[`)
	const jobs = 300
	for n := range jobs {
		if n > 0 {
			text.WriteString(",")
		}
		fmt.Fprintf(&text, `{"owner":"user%d","devices":[{"uuid":"a","used":18446744073709551615,"limited":true,"limit":18446744073709551615}]}`, n)
	}
	text.WriteString(`],"serials":[`)
	for n := range jobs {
		fmt.Fprintf(&text, "%d,", n+1)
	}
	findings := strings.Repeat(`{"kind":"drift","text":"`+strings.Repeat("y", 1000)+`"},`, 50)
	serials := strings.TrimSuffix(text.String(), ",") + `],"findings":[` + findings + `{"kind":"over-limit","text":"worst"}]}` + "\n"
	address := serveTLS(t, s.Authority, "127.0.0.1", says(serials))
	f := follow(t, folder, address)
	m := await(t, f, address, fleet.Up)
	var held uint64
	for _, u := range m.GPUs[0].Users {
		held += u.Used
	}
	expect.True(t, held == 1000 && m.GPUs[0].Used == 1000 && len(m.Users) <= 257, held, m.GPUs[0].Used, len(m.Users))
	expect.True(t, len(m.GPUs[0].Name) < 70 && !strings.Contains(m.GPUs[0].Name, "\x1b"), m.GPUs[0].Name)
	expect.True(t, len(m.Problems) == 8 && m.More == 43 && m.Problems[0].Text == "worst" && len(m.Problems[1].Text) < 250, m.Problems, m.More)
	expect.True(t, m.Name == address && m.URL == "https://"+address+"/", m.Name, m.URL)
}

// Each machine gets the token of its line of the list, and no other.
func TestTokens(t *testing.T) {
	s, folder := made(t, 1)
	got := make(chan string, 2)
	handler := func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header.Get("Authorization") + " " + r.URL.RequestURI()
		says("{}\n")(w, r)
	}
	own := serveTLS(t, s.Authority, "127.0.0.1", handler)
	expect.OK(t, os.WriteFile(filepath.Join(folder, "own"), []byte("ffffffffffffffffffffffff"), 0o600))
	expect.OK(t, os.WriteFile(filepath.Join(folder, "list"), []byte(own+" "+filepath.Join(folder, "own")+"\n"), 0o600))
	f := follow(t, folder, "@"+filepath.Join(folder, "list"))
	await(t, f, own, fleet.Up)
	expect.Equal(t, <-got, "Bearer ffffffffffffffffffffffff /v1/watch")
}
