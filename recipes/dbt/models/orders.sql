select * from parquet.`{{ var("orders") }}`
