// Package dns resolves the names of Services to the addresses of their ready endpoints. There is nothing else to resolve: the
// pods have no way out.
package dns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	// timeToLive is how many seconds an answer may be kept: endpoints come and go.
	timeToLive = 1
	// mostDatagram is what fits into an answer without TCP.
	mostDatagram = 512
	// patience is how long a client may take to ask over TCP.
	patience = 5 * time.Second
)

// Lookup is what answers come from: the addresses of a name, and whether there is such a name.
type Lookup func(name string) (addresses []string, known bool, err error)

// Server answers on UDP and TCP.
type Server struct {
	lookup Lookup
	packet net.PacketConn
	stream net.Listener
}

// Serve begins to answer at an address.
func Serve(address string, lookup Lookup) (*Server, error) {
	packet, err := net.ListenPacket("udp", address)
	if err != nil {
		return nil, fmt.Errorf("serve names: %w", err)
	}
	stream, err := net.Listen("tcp", address)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("serve names: %w", err), packet.Close())
	}
	s := &Server{lookup: lookup, packet: packet, stream: stream}
	go s.servePackets()
	go s.serveStreams()
	return s, nil
}

// Close stops to answer.
func (s *Server) Close() error { return errors.Join(s.packet.Close(), s.stream.Close()) }

func (s *Server) servePackets() {
	question := make([]byte, 1500)
	for {
		size, from, err := s.packet.ReadFrom(question)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		if reply, err := answer(question[:size], s.lookup, mostDatagram); err == nil {
			// Who misses an answer asks again.
			_, _ = s.packet.WriteTo(reply, from)
		}
	}
}

func (s *Server) serveStreams() {
	for {
		connection, err := s.stream.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			go s.serveStream(connection)
		}
	}
}

// serveStream answers the questions of one connection, each behind its length.
func (s *Server) serveStream(connection net.Conn) {
	defer connection.Close()
	for {
		_ = connection.SetDeadline(time.Now().Add(patience))
		var length [2]byte
		if _, err := io.ReadFull(connection, length[:]); err != nil {
			return
		}
		question := make([]byte, binary.BigEndian.Uint16(length[:]))
		if _, err := io.ReadFull(connection, question); err != nil {
			return
		}
		reply, err := answer(question, s.lookup, 1<<16-1)
		if err != nil {
			return
		}
		if _, err := connection.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...)); err != nil {
			return
		}
	}
}

// answer makes the reply to a question, cut off if it were longer than most. An error means that it was none.
func answer(message []byte, lookup Lookup, most int) ([]byte, error) {
	var parser dnsmessage.Parser
	header, err := parser.Start(message)
	if err != nil {
		return nil, fmt.Errorf("read a question: %w", err)
	}
	question, err := parser.Question()
	if err != nil || header.Response {
		return nil, fmt.Errorf("read a question: %w", errors.Join(err, errors.ErrUnsupported))
	}
	reply := dnsmessage.Message{
		Header: dnsmessage.Header{
			ID: header.ID, Response: true, Authoritative: true, RecursionDesired: header.RecursionDesired, RecursionAvailable: true,
		},
		Questions: []dnsmessage.Question{question},
	}
	addresses, known, err := lookup(question.Name.String())
	switch {
	case err != nil:
		slog.Error("a name could not be looked up", "name", question.Name.String(), "error", err)
		reply.RCode = dnsmessage.RCodeServerFailure
	case !known:
		reply.RCode = dnsmessage.RCodeNameError
	case question.Type == dnsmessage.TypeA || question.Type == dnsmessage.TypeALL:
		reply.Answers = records(question.Name, addresses)
	}
	packed, err := reply.Pack()
	if err == nil && len(packed) > most {
		reply.Truncated, reply.Answers = true, nil
		packed, err = reply.Pack()
	}
	return packed, err
}

func records(name dnsmessage.Name, addresses []string) []dnsmessage.Resource {
	var found []dnsmessage.Resource
	for _, text := range addresses {
		address, err := netip.ParseAddr(text)
		if err != nil || !address.Is4() {
			continue
		}
		found = append(found, dnsmessage.Resource{
			Header: dnsmessage.ResourceHeader{Name: name, Class: dnsmessage.ClassINET, TTL: timeToLive},
			Body:   &dnsmessage.AResource{A: address.As4()},
		})
	}
	return found
}
