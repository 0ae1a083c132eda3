package main

import (
	"encoding/json"
	"fmt"
	"reflect"

	"github.com/apache/pulsar-client-go/pulsar"
)

var bytesType = reflect.TypeOf([]byte{})

// typed is a schema, and perhaps a value of it: {"type": "INT32", "value": 5}.
type typed struct {
	Type       string          `json:"type"`
	Kind       string          `json:"kind"`
	Definition string          `json:"definition"`
	Value      json.RawMessage `json:"value"`
}

// flight is what Java's driver has as a class of this name.
type flight struct {
	Tail     *string `json:"tail" avro:"tail"`
	Delays   []int   `json:"delays" avro:"delays"`
	Distance int64   `json:"distance" avro:"distance"`
}

func (of *typed) schema() (pulsar.Schema, error) {
	if of == nil {
		return nil, nil
	}
	switch of.Type {
	case "STRING":
		return pulsar.NewStringSchema(nil), nil
	case "INT8":
		return pulsar.NewInt8Schema(nil), nil
	case "INT16":
		return pulsar.NewInt16Schema(nil), nil
	case "INT32":
		return pulsar.NewInt32Schema(nil), nil
	case "INT64":
		return pulsar.NewInt64Schema(nil), nil
	case "FLOAT":
		return pulsar.NewFloatSchema(nil), nil
	case "DOUBLE":
		return pulsar.NewDoubleSchema(nil), nil
	case "FLIGHT":
		if of.Kind == "JSON" {
			return pulsar.NewJSONSchemaWithValidation(of.Definition, nil)
		}
		return pulsar.NewAvroSchemaWithValidation(of.Definition, nil)
	}
	return nil, fmt.Errorf("Go has no such schema: %s", of.Type)
}

// target is where a value of the schema goes, by a pointer.
func (of *typed) target() any {
	switch of.Type {
	case "STRING":
		return new(string)
	case "INT8":
		return new(int8)
	case "INT16":
		return new(int16)
	case "INT32":
		return new(int32)
	case "INT64":
		return new(int64)
	case "FLOAT":
		return new(float32)
	case "DOUBLE":
		return new(float64)
	}
	return new(flight)
}

func (of *typed) value() (any, error) {
	target := of.target()
	if err := json.Unmarshal(of.Value, target); err != nil {
		return nil, err
	}
	if of.Type == "FLIGHT" {
		return target, nil
	}
	return reflect.ValueOf(target).Elem().Interface(), nil
}

// read is a message's value; what the client takes by a pointer to a pointer it gets so.
func (of *typed) read(message pulsar.Message) (any, error) {
	target := of.target()
	if of.Type == "STRING" {
		text := target.(*string)
		err := message.GetSchemaValue(&text)
		return text, err
	}
	err := message.GetSchemaValue(target)
	return target, err
}

func entries(view pulsar.TableView) map[string]string {
	found := map[string]string{}
	for key, value := range view.Entries() {
		switch raw := value.(type) {
		case []byte:
			found[key] = encoded(raw)
		case *[]byte:
			found[key] = encoded(*raw)
		}
	}
	return found
}
