package cluster

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/client-go/rest"
	clientcert "k8s.io/client-go/util/cert"
)

// keys are the files with which the components and their clients authenticate each other.
type keys struct {
	folder                             string
	cert, key, tokens, serviceAccounts string            // paths
	users                              map[string]string // tokens by user
	pool                               *x509.CertPool
}

func nodeUsers(nodes []string) (users []string) {
	for _, node := range nodes {
		users = append(users, nodeUser(node))
	}
	return users
}

func nodeUser(node string) string { return "system:node:" + node }

// groups returns the groups of a user, by which it has its rights.
func groups(user string) string {
	switch {
	case user == admin:
		return "system:masters"
	case strings.HasPrefix(user, "system:node:"):
		return "system:nodes"
	}
	return ""
}

func makeKeys(folder string, users map[string]string) (*keys, error) {
	k := &keys{folder: folder, users: users, pool: x509.NewCertPool()}
	files := map[string][]byte{}
	file := func(name string, text []byte) string {
		path := filepath.Join(folder, name)
		files[path] = text
		return path
	}
	cert, key, err := clientcert.GenerateSelfSignedCertKey("127.0.0.1", []net.IP{net.IPv4(127, 0, 0, 1), net.ParseIP(ServiceAddress)}, []string{"localhost"})
	if err != nil {
		return nil, fmt.Errorf("making a certificate: %w", err)
	}
	k.pool.AppendCertsFromPEM(cert)
	k.cert, k.key = file("server.crt", cert), file("server.key", key)
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, fmt.Errorf("making a key: %w", err)
	}
	k.serviceAccounts = file("service-accounts.key", pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(private)}))
	var lines strings.Builder
	for user, token := range users {
		fmt.Fprintf(&lines, "%s,%s,%s,%q\n", token, user, user, groups(user))
	}
	k.tokens = file("tokens.csv", []byte(lines.String()))
	for path, text := range files {
		err = errors.Join(err, os.WriteFile(path, text, 0o600))
	}
	return k, err
}

const kubeconfigText = `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: u, user: {token: %q}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
`

// kubeconfig returns the path of a user's kubeconfig.
func (c *Cluster) kubeconfig(user string) (string, error) {
	return c.WriteKubeconfig(strings.ReplaceAll(user, ":", "-"), c.keys.users[user])
}

// WriteKubeconfig writes a kubeconfig with a token, and returns its path.
func (c *Cluster) WriteKubeconfig(name, token string) (string, error) {
	path := filepath.Join(c.folder, name+".kubeconfig")
	return path, os.WriteFile(path, fmt.Appendf(nil, kubeconfigText, c.url(), c.keys.cert, token), 0o600)
}

// NodeKubeconfig returns the path of the kubeconfig for the kubelet of a node of the options.
func (c *Cluster) NodeKubeconfig(node string) (string, error) { return c.kubeconfig(nodeUser(node)) }

// As returns a configuration for a client that acts as another user.
func (c *Cluster) As(user string, groups ...string) *rest.Config {
	config := rest.CopyConfig(c.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: groups}
	return config
}

func (k *keys) client(token string) *http.Client {
	return &http.Client{Transport: bearer{token, &http.Transport{TLSClientConfig: &tls.Config{RootCAs: k.pool}}}}
}

// bearer adds a token to each request.
type bearer struct {
	token string
	next  http.RoundTripper
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.next.RoundTrip(r)
}

// get returns whether an address answers with success.
func get(ctx context.Context, client *http.Client, url string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	answer, err := client.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 2000))
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", url, answer.Status, text)
	}
	return nil
}

// tail returns the end of a file.
func tail(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-3000):])
}
