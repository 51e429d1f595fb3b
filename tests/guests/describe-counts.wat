;; Would declare another kind when it is asked a second time.
(module
  (memory (export "memory") 1)
  (global $asked (mut i32) (i32.const 0))
  (data (i32.const 256) "{\"name\":\"counts\",\"version\":\"0.1.0\",\"parent\":{\"apiVersion\":\"cases.example.com/v1\",\"kind\":\"Widget\"},\"children\":[{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\"}]}")
  (data (i32.const 512) "{\"name\":\"counts\",\"version\":\"0.1.0\",\"parent\":{\"apiVersion\":\"cases.example.com/v1\",\"kind\":\"Gadget\"},\"children\":[{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\"}]}")
  ;; Pointers and lengths of the two manifests.
  (data (i32.const 64) "\00\01\00\00\96\00\00\00\00\02\00\00\96\00\00\00")
  ;; Where arguments go: they are small.
  (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) i32.const 8192)
  (func (export "describe") (result i32)
    (global.set $asked (i32.add (global.get $asked) (i32.const 1)))
    (select (i32.const 64) (i32.const 72) (i32.eq (global.get $asked) (i32.const 1))))
  (func (export "reconcile") (param i32 i32) (result i32) unreachable)
  (func (export "finalize") (param i32 i32) (result i32) unreachable)
)
