;; Traps in arithmetic.
(module
  (memory (export "memory") 1)
  ;; Where arguments go: they are small.
  (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) i32.const 8192)
  (data (i32.const 256) "{\"name\":\"divides-by-zero\",\"version\":\"0.1.0\",\"parent\":{\"apiVersion\":\"cases.example.com/v1\",\"kind\":\"Widget\"},\"children\":[{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\"}]}")
  ;; Pointer and length of the manifest.
  (data (i32.const 64) "\00\01\00\00\9f\00\00\00")
  (func (export "describe") (result i32) i32.const 64)
  (func (export "reconcile") (param i32 i32) (result i32)
    (i32.div_u (local.get 1) (i32.const 0)))
  (func (export "finalize") (param i32 i32) (result i32) unreachable)
)
