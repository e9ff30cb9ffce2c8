package deploy_test

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"ration/check/expect"
)

// tools makes a folder with the programs that the script uses, but for one.
func tools(t *testing.T, without string) (folder string) {
	t.Helper()
	folder = t.TempDir()
	for _, name := range strings.Fields("cat cp curl dash env grep gzip head id minisign mkdir mktemp mv rm sed sh sha256sum tail tar tr uname wget") {
		if path, err := exec.LookPath(name); err == nil && name != without {
			expect.OK(t, os.Symlink(path, filepath.Join(folder, name)))
		}
	}
	return folder
}

// A server that leads the script from https to http, where anybody on the way can answer, is not followed.
func TestHostileRedirect(t *testing.T) {
	for _, tool := range []string{"curl", "wget"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Logf("%s is not installed: %v", tool, err)
			continue
		}
		other := map[string]string{"curl": "wget", "wget": "curl"}[tool]
		for name, c := range map[string]struct {
			to   func(plain, secure string) string
			want string // empty: it is installed
		}{
			"no redirection":      {nil, ""},
			"to https":            {func(_, secure string) string { return secure + "/files" }, ""},
			"to a path":           {func(_, _ string) string { return "/files" }, ""},
			"to http":             {func(plain, _ string) string { return plain }, "nothing was installed"},
			"to http by https":    {func(_, secure string) string { return secure + "/plain" }, "nothing was installed"},
			"to a file":           {func(_, _ string) string { return "file:///etc" }, "nothing was installed"},
			"to itself for ever":  {func(_, secure string) string { return secure }, "nothing was installed"},
			"to nothing at all":   {func(_, secure string) string { return secure + "/missing" }, "nothing was installed"},
			"an address by http":  {nil, "must begin with https://"},
			"an address by ftp":   {nil, "must begin with https://"},
			"an address of files": {nil, ""},
		} {
			t.Run(tool+" "+name, func(t *testing.T) {
				r := release{t, t.TempDir()}
				r.add("0.2.0", "")
				files := http.FileServer(http.Dir(r.folder))
				reached := false
				plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
					reached = true
					files.ServeHTTP(w, req)
				}))
				defer plain.Close()
				var secure *httptest.Server
				secure = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
					rest, is := strings.CutPrefix(req.URL.Path, "/files")
					switch {
					case strings.HasPrefix(req.URL.Path, "/plain"):
						http.Redirect(w, req, plain.URL+strings.TrimPrefix(req.URL.Path, "/plain"), http.StatusFound)
					case strings.HasPrefix(req.URL.Path, "/missing"):
						http.NotFound(w, req)
					case is || c.to == nil:
						req.URL.Path = rest
						if !is {
							req.URL.Path = "/" + strings.TrimPrefix(rest, "/")
						}
						files.ServeHTTP(w, req)
					default:
						http.Redirect(w, req, c.to(plain.URL, secure.URL)+req.URL.Path, http.StatusFound)
					}
				}))
				defer secure.Close()
				home := t.TempDir()
				authority := filepath.Join(t.TempDir(), "ca.pem")
				text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})
				expect.OK(t, os.WriteFile(authority, text, 0o600))
				expect.OK(t, os.WriteFile(filepath.Join(home, ".wgetrc"), []byte("ca_certificate="+authority+"\n"), 0o600))
				url := secure.URL
				switch {
				case strings.HasSuffix(name, "by http"):
					url = plain.URL
				case strings.HasSuffix(name, "by ftp"):
					url = "ftp" + strings.TrimPrefix(plain.URL, "http")
				case strings.HasSuffix(name, "of files"):
					url = "file://" + r.folder
				}
				prefix := filepath.Join(home, "prefix")
				out, err := r.install(home, "PATH="+tools(t, other), "CURL_CA_BUNDLE="+authority, "RATION_URL="+url, "RATION_PREFIX="+prefix, "no_proxy=*")
				_, e := os.Stat(filepath.Join(prefix, "bin/ration"))
				installed := e == nil
				expect.True(t, installed == (c.want == "") && (err == nil) == installed && strings.Contains(out, c.want), err, "installed", installed, out)
				expect.True(t, !reached, "it asked the server without TLS")
			})
		}
	}
}

// A changed release is not installed. A person who can change the tarball can also change SHA256SUMS, but cannot sign it.
func TestHostileRelease(t *testing.T) {
	if _, err := exec.LookPath("minisign"); err != nil {
		t.Skipf("minisign is not installed (make test-install installs it): %v", err)
	}
	keys := t.TempDir()
	minisign := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("minisign", args...).CombinedOutput(); err != nil {
			t.Fatalf("minisign %s: %v: %s", args, err, out)
		}
	}
	key := func(name string) (secret, public string) {
		t.Helper()
		secret = filepath.Join(keys, name)
		minisign("-GW", "-p", secret+".pub", "-s", secret)
		text, err := os.ReadFile(secret + ".pub")
		expect.OK(t, err)
		return secret, strings.Split(string(text), "\n")[1]
	}
	secret, public := key("release")
	theirs, _ := key("theirs")
	script, err := os.ReadFile("install.sh")
	expect.OK(t, err)
	ours := filepath.Join(keys, "install.sh") // as make dist writes it
	expect.OK(t, os.WriteFile(ours, []byte(strings.Replace(string(script), "\ndefault_key=\n", "\ndefault_key="+public+"\n", 1)), 0o600))
	sign := func(secret string) func(sums string) {
		return func(sums string) { minisign("-Sm", sums, "-s", secret) }
	}
	for name, c := range map[string]struct {
		script  string
		sign    func(sums string)
		env     []string
		without string // a program
		want    string
		refused bool
	}{
		"signed":                         {ours, sign(secret), nil, "", "SHA-256 verified, signature verified", false},
		"signed, by RATION_KEY":          {"install.sh", sign(secret), []string{"RATION_KEY=" + public}, "", "signature verified", false},
		"not signed":                     {ours, func(string) {}, nil, "", "cannot fetch", true},
		"signed by another":              {ours, sign(theirs), nil, "", "was not signed by the key " + public, true},
		"changed since":                  {ours, func(sums string) { sign(secret)(sums); appendTo(t, sums, "\n") }, nil, "", "was not signed by", true},
		"without minisign":               {ours, func(string) {}, nil, "minisign", "signature not checked (install minisign)", false},
		"without minisign, with the key": {"install.sh", func(string) {}, []string{"RATION_KEY=" + public}, "minisign", "please install minisign", true},
		"a release without a key":        {"install.sh", func(string) {}, nil, "", "SHA-256 verified\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			r, home := release{t, t.TempDir()}, t.TempDir()
			r.add("0.2.0", "")
			c.sign(filepath.Join(r.folder, "SHA256SUMS"))
			cmd := exec.Command("sh", c.script)
			prefix := filepath.Join(home, "prefix")
			cmd.Env = append(c.env, "PATH="+tools(t, c.without), "HOME="+home, "RATION_URL=file://"+r.folder, "RATION_PREFIX="+prefix)
			out, err := cmd.CombinedOutput()
			_, e := os.Stat(prefix)
			expect.True(t, (err != nil) == c.refused && (e != nil) == c.refused && strings.Contains(string(out), c.want), err, out)
		})
	}
}

func appendTo(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(text)
		_ = f.Close()
	}
	expect.OK(t, err)
}
