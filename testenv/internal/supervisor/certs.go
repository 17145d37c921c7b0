package supervisor

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// certificates are the files of the API server's identity, and of the key that signs service account tokens.
type certificates struct {
	caFile, certFile, keyFile string
	serviceAccountKeyFile     string
	// ca is the PEM text of caFile.
	ca []byte
}

// writeCertificates makes a certificate authority, a serving certificate for the addresses, and a service account key.
func writeCertificates(dir string, addresses []net.IP) (*certificates, error) {
	made := &certificates{
		caFile:                filepath.Join(dir, "ca.crt"),
		certFile:              filepath.Join(dir, "apiserver.crt"),
		keyFile:               filepath.Join(dir, "apiserver.key"),
		serviceAccountKeyFile: filepath.Join(dir, "service-account.key"),
	}
	authority := certificateTemplate("testenv-ca")
	authority.IsCA, authority.BasicConstraintsValid = true, true
	authority.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	authorityKey, err := newKey()
	if err != nil {
		return nil, err
	}
	if made.ca, err = writeCertificate(made.caFile, authority, authority, authorityKey.Public(), authorityKey); err != nil {
		return nil, err
	}
	serving := certificateTemplate("kube-apiserver")
	serving.KeyUsage = x509.KeyUsageDigitalSignature
	serving.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	serving.IPAddresses = addresses
	serving.DNSNames = []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"}
	servingKey, err := newKey()
	if err != nil {
		return nil, err
	}
	if _, err := writeCertificate(made.certFile, serving, authority, servingKey.Public(), authorityKey); err != nil {
		return nil, err
	}
	if err := writeKey(made.keyFile, servingKey); err != nil {
		return nil, err
	}
	accountKey, err := newKey()
	if err != nil {
		return nil, err
	}
	return made, writeKey(made.serviceAccountKeyFile, accountKey)
}

func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	return key, nil
}

func certificateTemplate(name string) *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.Add(365 * 24 * time.Hour),
	}
}

func writeCertificate(path string, subject, issuer *x509.Certificate, key crypto.PublicKey, issuerKey crypto.Signer) ([]byte, error) {
	der, err := x509.CreateCertificate(rand.Reader, subject, issuer, key, issuerKey)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate of %s: %w", subject.Subject.CommonName, err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return text, os.WriteFile(path, text, 0o600)
}

func writeKey(path string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return fmt.Errorf("encode the key %s: %w", path, err)
	}
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600)
}
